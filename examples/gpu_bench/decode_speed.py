"""Figure e: decode speed with scripted acceptance and the real draft's cost, over plain decoding.

python examples/gpu_bench/decode_speed.py --precision bf16 --context 64
"""

from __future__ import annotations

from typing import Any

from cases import measure_contexts
from models import bind, make_drafter
from results import Row, ratios, summarize
from scripted_choice import ScriptedChoice
from setting import Arguments, prompt_ids

from dflash_suite.core.decode.loop import Generation
from dflash_suite.core.options import GenerateOptions

TOKENS, BLOCK, RUNS = 192, 8, 5


class Silent:
    """A detokenizer that makes no text."""

    last_segment = ""

    def add_token(self, token: int) -> None:
        """Nothing to do."""

    def finalize(self) -> None:
        """Nothing to do."""


def main() -> None:
    """One model, every context asked for."""
    measure_contexts(__doc__, "e", measure)


def measure(given: Arguments, model: Any, context: int, case: str) -> list[Row]:
    """Plain and speculative runs in turn; what plain decoding wrote is the script."""
    target = bind(model, given.shape)
    drafter = make_drafter(target, given.shape)
    ids: Any = prompt_ids(context, target.config.vocab_size)[0].tolist()
    plain_speeds, speeds, lengths, differing = [], [], [], 0
    for turn in range(RUNS + 1):
        plain = run(target, ids, None, TOKENS + BLOCK)
        script = ScriptedChoice(drafter, plain.emitter.token_ids, context, target.config.vocab_size)
        fast = run(target, ids, script, TOKENS)
        if turn == 0:  # first passes of every width compile
            continue
        plain_speeds.append(plain.stats.tokens_per_second or 0.0)
        speeds.append(fast.stats.tokens_per_second or 0.0)
        lengths.append(fast.stats.tokens_per_round or 0.0)
        differing += sum(
            a != b for a, b in zip(fast.emitter.token_ids, plain.emitter.token_ids, strict=False)
        )
    return [
        summarize(f"e-{case}", ratios(speeds, plain_speeds), 2.7, "higher"),
        summarize(f"x-plain-tokens-sec-{case}", plain_speeds, better="higher"),
        summarize(f"x-dflash2-tokens-sec-{case}", speeds, better="higher"),
        summarize(f"x-accept-length-{case}", lengths, better="higher"),
        summarize(f"x-differing-ids-{case}", [differing]),
    ]


def run(target: Any, ids: list[int], drafter: Any, tokens: int) -> Generation:
    """One request from first to last token."""
    block = BLOCK if drafter else None
    options = GenerateOptions(max_tokens=tokens, block_size=block, gate=False)
    generation = Generation(target, ids, Silent(), drafter=drafter, options=options)
    for _ in generation:
        pass
    return generation


if __name__ == "__main__":
    main()
