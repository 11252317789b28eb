"""The forward check at load: it passes what is mlx-lm's own forward and stops everything else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash_suite.core.errors import CheckpointError, ForwardMismatch
from dflash_suite.core.target import families
from dflash_suite.core.target.backbones import Backbone, HybridBackbone, PlainBackbone
from dflash_suite.core.target.forward_check import check_forward
from dflash_suite.core.target.gated_delta import GdnTape
from dflash_suite.core.target.target import Target
from tests.kit.opening import open_target
from tests.kit.tiny import (
    GDN_LAYERS,
    Kind,
    Precision,
    make_model,
    make_target,
    save_checkpoint,
    target_config,
)

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "4bit"])
@pytest.mark.parametrize("kind", ["hybrid", "dense", "llama"])
def test_every_family_and_precision_passes(kind: Kind, precision: Precision) -> None:
    check_forward(make_target(kind, precision))


@pytest.mark.parametrize("kind", ["hybrid", "dense"])
def test_tied_heads_and_more_layers_pass(kind: Kind) -> None:
    check_forward(make_target(kind, tie_word_embeddings=True))
    check_forward(make_target(kind, num_hidden_layers=9))
    check_forward(make_target(kind, vocab_size=11))


def test_nan_equals_nan() -> None:
    """A broken checkpoint is not the suite's fault: its plain text would be the same."""
    target = make_target("hybrid")
    target.backbone.body.norm.weight = target.backbone.body.norm.weight * float("nan")
    check_forward(target)


Pass = tuple[mx.array, list[mx.array], list[GdnTape | None]]


class WrongNorm(HybridBackbone):
    """The norm's last bits, as another kernel would compute it."""

    def run(
        self, hidden: mx.array, cache: Sequence[Any], tap_ids: Sequence[int], record: bool
    ) -> Pass:
        hidden, taps, tapes = super().run(hidden, cache, tap_ids, record)
        return hidden * (1 + 2e-7), taps, tapes


class WrongWindow(HybridBackbone):
    """Right on an empty cache; the convolution window is lost behind the first pass."""

    def run(
        self, hidden: mx.array, cache: Sequence[Any], tap_ids: Sequence[int], record: bool
    ) -> Pass:
        result = super().run(hidden, cache, tap_ids, record)
        cache[GDN_LAYERS - 1][0] = mx.zeros_like(cache[GDN_LAYERS - 1][0])
        return result


class WrongState(HybridBackbone):
    """Wrong only behind a block over a filled cache: the last of the three passes sees it."""

    def run(
        self, hidden: mx.array, cache: Sequence[Any], tap_ids: Sequence[int], record: bool
    ) -> Pass:
        filled = cache[0].offset > 0
        result = super().run(hidden, cache, tap_ids, record)
        if filled:
            cache[0][1] = cache[0][1] * 0.5
        return result


class WrongShape(HybridBackbone):
    """Loses a row."""

    def logits(self, hidden: mx.array) -> mx.array:
        return super().logits(hidden[:, 1:])


class WrongBit(HybridBackbone):
    """Last bits of the logits, far within any tolerance."""

    def logits(self, hidden: mx.array) -> mx.array:
        return super().logits(hidden) * (1 + 2e-7)


class WrongHead(PlainBackbone):
    """Scores that a softmax would not tell apart; the bits do."""

    def logits(self, hidden: mx.array) -> mx.array:
        return super().logits(hidden) + 1


class MissingLayer(PlainBackbone):
    """Drops the last decoder layer."""

    @property
    def layers(self) -> Sequence[Any]:
        return [*self.model.layers[:-1], lambda hidden, mask, entry: hidden]


PLANTED: dict[type[Backbone], str] = {
    WrongNorm: "by up to",
    WrongBit: "by up to",
    WrongWindow: "over 3 rows",
    WrongState: "over 1 rows",
    WrongShape: r"in shape \(",
    WrongHead: "by up to 1 over 5 rows",
    MissingLayer: "over 5 rows",
}


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.__name__)
def test_a_planted_fault_is_found(planted: type[Backbone]) -> None:
    kind: Kind = "hybrid" if issubclass(planted, HybridBackbone) else "dense"
    target = Target(planted(make_model(kind)), target_config(kind))
    with pytest.raises(ForwardMismatch, match=PLANTED[planted]) as caught:
        check_forward(target)
    message = str(caught.value)
    assert str(Path("tiny") / "config.json") in message
    assert "mlx-lm 0.32.2" in message and "nothing was decoded" in message


def test_the_loader_stops_at_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """End to end: a checkpoint that loads well and computes otherwise is not decoded."""
    save_checkpoint(tmp_path)
    open_target(str(tmp_path))
    monkeypatch.setitem(families.BACKBONES, "hybrid", WrongNorm)
    with pytest.raises(ForwardMismatch, match=str(tmp_path)):
        open_target(str(tmp_path))


def test_layers_that_return_something_else() -> None:
    """A later mlx-lm may change what a layer returns; no traceback from the middle of it."""

    class Tuples(PlainBackbone):
        @property
        def layers(self) -> Sequence[Any]:
            def wrapped(layer: Any) -> Callable[..., Any]:
                return lambda *args: (layer(*args), None)

            return [wrapped(layer) for layer in self.model.layers]

    with pytest.raises(ForwardMismatch, match="cannot run on the modules of the installed mlx-lm"):
        check_forward(Target(Tuples(make_model("dense")), target_config("dense")))


def test_a_model_that_mlx_lm_itself_cannot_run() -> None:
    model = make_model("dense")
    model.model.norm = None
    with pytest.raises(CheckpointError, match="mlx-lm's own forward of qwen3 fails"):
        check_forward(Target(PlainBackbone(model), target_config("dense")))


def test_the_check_leaves_the_target_as_it_was() -> None:
    target = make_target("hybrid")
    check_forward(target)
    assert all(layer.offset == 0 for layer in target.make_cache())
    assert target.backbone.model.training is False
