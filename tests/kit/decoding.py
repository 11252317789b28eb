"""A pair's own generation: the loop over its drafters, with no engine around it."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_suite.core.decode.chat import encode_text
from dflash_suite.core.decode.loop import Generation
from dflash_suite.core.decode.setup import Setup
from dflash_suite.core.options import GenerateOptions
from dflash_suite.drafters.pair import Pair


def generate(
    pair: Pair, prompt: str | Sequence[int], options: GenerateOptions | None = None
) -> Generation:
    """Iterate the result for events; text is encoded as it stands."""
    ids = encode_text(pair.tokenizer, prompt) if isinstance(prompt, str) else prompt
    detokenizer = pair.tokenizer.detokenizer
    setup = Setup(reserve=pair.reserve)
    return Generation(pair.target, ids, detokenizer, pair.drafter, options, setup)
