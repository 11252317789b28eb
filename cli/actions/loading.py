"""A model and its drafters loaded for a command, with what is to be said of them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ...core.options import GenerateOptions, LoadOptions
from ..text.footer import print_note
from ..text.progress import Progress

if TYPE_CHECKING:
    from ...drafters.engine import Engine


def load_engine(
    loading: LoadOptions, options: GenerateOptions, progress: Progress, *, quiet: bool
) -> Engine:
    """The engine; notes of the load go to stderr unless `quiet`. Raises as load_pair."""
    with progress:
        from ...drafters.engine import from_pair
        from ...drafters.pair import load_pair

        pair = load_pair(loading, progress.report(notes=not quiet), options)
    for note in () if quiet else pair.notes:
        print_note(note)
    # A prompt longer than the tokenizer's nominal length is legal here; transformers warns.
    logging.getLogger("transformers").setLevel(logging.ERROR)
    return from_pair(pair, options.prefill_step_size)
