"""Runs in its own process, with the upstream reference on the path: drafts round by round.

    python upstream_runner.py REQUEST.json RESPONSE.json

REQUEST: {target, drafters: [directories], prompts: [{ids, in_order}], max_tokens, block_size}.
RESPONSE: for each drafter and prompt {tokens, drafts: [[ids of a round]]}. Everything computes in
float32. Not part of the suite and never imported by it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
from mlx_lm.models.cache import RotatingKVCache


class InOrderCache(RotatingKVCache):
    """A rotating cache whose rows stay in order of time.

    mlx-lm's own turns into a ring at an update of a single row, that is after a round without
    acceptance. The reference's mask, which counts rows from the oldest, then hides the wrong ones
    (dflash 0.1.0 with mlx-lm 0.32.2, from the first such round after the window is full).
    """

    def update_and_fetch(self, keys: Any, values: Any) -> Any:
        return self._update_concat(keys, values)  # type: ignore[no-untyped-call]


def load_upstream_drafter(directory: str) -> Any:
    """Upstream's load_draft, whose hub download is answered with a directory that is here."""
    from dflash import model_mlx  # type: ignore[import-not-found, unused-ignore]

    model_mlx.snapshot_download = lambda name, **_: name
    drafter = model_mlx.load_draft(directory)
    drafter.set_dtype(mx.float32)
    return drafter


def record_drafts(drafter: Any) -> list[list[int]]:
    """Every later call of this drafter object adds the drafts of its round to the list."""
    rounds: list[list[int]] = []
    if hasattr(drafter, "propose"):  # DFlash2: the selector's path
        propose = drafter.propose

        def proposed(*args: Any, **kwargs: Any) -> Any:
            out = propose(*args, **kwargs)
            rounds.append(out[0][0].tolist())
            return out

        drafter.propose = proposed
    else:  # DFlash: argmax of the logits, as upstream takes it
        compute_logits = drafter.compute_logits

        def computed(hidden: Any) -> Any:
            logits = compute_logits(hidden)
            rounds.append(mx.argmax(logits, axis=-1)[0].tolist())  # type: ignore[arg-type]
            return logits

        drafter.compute_logits = computed
    return rounds


def run(request: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """All prompts through each drafter."""
    from dflash.model_mlx import stream_generate  # type: ignore[import-not-found, unused-ignore]

    loaded: Any = mlx_lm.load(request["target"])
    model, tokenizer = loaded[0], loaded[1]
    model.set_dtype(mx.float32)
    results = []
    for directory in request["drafters"]:
        drafter = load_upstream_drafter(directory)
        rounds = record_drafts(drafter)
        make_cache = drafter.make_cache

        def in_order(make_cache: Any = make_cache) -> list[Any]:
            return [
                InOrderCache(entry.max_size)  # type: ignore[no-untyped-call]
                if isinstance(entry, RotatingKVCache)
                else entry
                for entry in make_cache()
            ]

        answers = []
        for prompt in request["prompts"]:
            rounds.clear()
            drafter.make_cache = in_order if prompt["in_order"] else make_cache
            responses = stream_generate(
                model,
                drafter,
                tokenizer,
                prompt["ids"],
                block_size=request["block_size"],
                max_tokens=request["max_tokens"],
            )
            tokens = [token for response in responses for token in response.tokens]
            answers.append({"tokens": tokens, "drafts": list(rounds)})
        results.append(answers)
    return results


if __name__ == "__main__":
    request_file, response_file = map(Path, sys.argv[1:])
    answers = run(json.loads(request_file.read_text(encoding="utf-8")))
    response_file.write_text(json.dumps(answers), encoding="utf-8")
