"""A fused draft is the plain operations' up to rounding, and bitwise the same however its steps
share launches: the text of the CUDA kernels, run on a CPU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_map, tree_map_with_path

from dflash_suite.core.cuda.ops.ends import block_ids, join_rows
from dflash_suite.core.cuda.ops.fused_ops import CudaKernels
from dflash_suite.core.cuda.ops.projections import fit_together
from dflash_suite.core.decode.drafter import TargetRows
from dflash_suite.core.options import Kernels
from dflash_suite.drafters.dflash.config import DrafterConfig, read_drafter_config
from dflash_suite.drafters.dflash.cuda import draft as fused
from dflash_suite.drafters.dflash.drafter import DFlashDrafter, DFlashModel
from dflash_suite.drafters.dflash.layers import make_rope
from tests.core.cuda.test_cuda_on_cpu import distance
from tests.core.cuda.test_fused import traced_once
from tests.kit.cuda_on_cpu import COMPILER, CudaOnCpu
from tests.kit.tiny import make_target
from tests.kit.tiny_drafter import raw_drafter, write_config

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++ to stand for nvcc")
WIDTH = 256
ANCHOR, COUNT = 7, 5
SIZES: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 128,
    "head_dim": 64,
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": 12,
    "use_sliding_window": True,
}
SELECTOR: dict[str, Any] = {"selector_top_k": 16, "selector_rank": 32}


class Ends:
    """A table and a head of the target's kind; the table of 8 bits is none of the kernels'."""

    head_projection: Any = None

    def __init__(self, vocab: int, bits: int) -> None:
        self.kernels: Kernels = "stock"
        table: Any = nn.Embedding(vocab, WIDTH)
        table.weight = mx.random.normal(table.weight.shape).astype(mx.bfloat16)
        self._head = mx.random.normal((vocab, WIDTH)).astype(mx.bfloat16)
        self.embedding_table: Any = table
        if bits < 16:
            self.embedding_table = nn.QuantizedEmbedding.from_embedding(table, 64, bits)

    def embed_token_ids(self, token_ids: mx.array) -> mx.array:
        rows: mx.array = self.embedding_table(token_ids)
        return rows

    def head_logits(self, hidden: mx.array) -> mx.array:
        return hidden @ self._head.T


def make_drafters(
    kind: Any,
    bits: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    table_bits: int | None = None,
    **changes: Any,
) -> tuple[DFlashDrafter, DFlashDrafter, DFlashDrafter]:
    """(fused, plain, plain in float32) over equal weights."""
    mx.random.seed(3)
    extra = SELECTOR if kind == "dflash2" else {}
    raw = raw_drafter(kind, **{**SIZES, **extra, **changes})
    config = read_drafter_config(write_config(tmp_path, raw))
    ends = Ends(config.vocab_size, table_bits or bits)
    models = [random_model(config, bits) for _ in range(2)]
    models[1].update(models[0].parameters())
    exact = random_model(config, bits)
    exact.update(tree_map(in_float32, models[0].parameters()))
    monkeypatch.setattr(mx, "compile", traced_once)
    monkeypatch.setattr(fused, "cuda_in_use", lambda: True)
    plain, exact_one = (
        DFlashDrafter(m, config, ends, make_rope(config)) for m in (models[0], exact)
    )
    ends.kernels = "fused"
    fast = DFlashDrafter(models[1], config, ends, make_rope(config))
    assert plain._fused is None and fast._fused is not None
    return fast, plain, exact_one


def in_bfloat16(weight: mx.array) -> mx.array:
    return weight.astype(mx.bfloat16) if weight.dtype == mx.float32 else weight


def in_float32(weight: mx.array) -> mx.array:
    return weight.astype(mx.float32) if weight.dtype == mx.bfloat16 else weight


def random_model(config: DrafterConfig, bits: int) -> DFlashModel:
    model = DFlashModel(config)

    def draw(path: str, weight: mx.array) -> mx.array:
        drawn: mx.array = mx.random.normal(weight.shape) * weight.shape[-1] ** -0.5
        drawn = drawn * (8 if "codebook" in path else 1)  # so that the path follows the anchor
        return mx.array(drawn + (1 if "norm" in path else 0), dtype=mx.bfloat16)

    model.update(tree_map_with_path(draw, model.parameters()))
    if bits == 4:
        nn.quantize(model, group_size=64, bits=4)
    return model


def show(drafter: DFlashDrafter, count: int, seed: int) -> None:
    """Rows of random taps."""
    mx.random.seed(seed)
    taps = mx.random.normal((1, count, 2 * WIDTH)).astype(mx.bfloat16)
    drafter.observe(TargetRows(drafter.position, mx.zeros((count,)), taps, taps[..., :WIDTH]))


def contexts(drafter: DFlashDrafter) -> list[mx.array]:
    """The live keys and values of every layer."""
    rows = [drafter._context(index) for index in range(3)]
    none = mx.zeros((1, 2, 0, 64), dtype=mx.bfloat16)
    return [part for context in rows for part in context.with_block(none, none)]


def chosen(drafter: DFlashDrafter, hidden: mx.array) -> Any:
    """The path that plain operations take over these hidden rows."""
    logits = drafter.block_logits(hidden)
    if drafter.config.selector is None:
        return mx.argmax(logits[0], axis=-1).tolist()
    return drafter.model.candidate_selector(hidden, logits, mx.array([ANCHOR])).tolist()


def assert_as_near(hidden: mx.array, plain: DFlashDrafter, exact: DFlashDrafter) -> None:
    """The fused hidden rows are no further from float32's than plain bfloat16 is."""
    near, reference = (one.block_hidden(mx.array([ANCHOR]), COUNT) for one in (plain, exact))
    assert distance(hidden, reference) < 1.3 * distance(near, reference) < 0.5


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("kind", "bits", "changes"),
    [("dflash2", 4, {}), ("dflash2", 16, {"input_embedding_scale": 3.0}), ("dflash", 16, {})],
)
def test_a_draft_is_that_of_plain_operations(
    emulated: CudaOnCpu,
    kind: Any,
    bits: int,
    changes: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fast, plain, exact = make_drafters(kind, bits, tmp_path, monkeypatch, **changes)
    found = hidden_of(fast, monkeypatch)
    seen: list[Any] = []
    for seed, count in enumerate((9, 4, 1, 6)):  # 9 rows are too many for the kernels
        start = len(emulated.calls)
        for drafter in (fast, plain, exact):
            show(drafter, count, seed)
        assert fast.context_lengths == plain.context_lengths
        for mine, theirs in zip(contexts(fast), contexts(plain), strict=True):
            assert mine.shape == theirs.shape and distance(mine, theirs) < 4e-2
        assert len(emulated.calls) - start == (0 if count == 9 else 2), "their place; they"
        ids = [one.draft(mx.array([ANCHOR]), COUNT).tolist() for one in (fast, plain)]
        assert_as_near(found[-1], plain, exact)
        assert ids[0] == chosen(fast, found[-1]), "the path of these hidden rows"
        launches = len(emulated.calls) - start - (0 if count == 9 else 2)
        assert launches == (3 if kind == "dflash2" else 2), (
            "numbers, all before the head, the choice"
        )
        seen += ids
    assert len({*map(tuple, seen)}) > 2, "one path shows nothing"


def test_a_draft_attends_to_all_of_its_context_and_to_nothing_else(
    emulated: CudaOnCpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row at either end of the context changes the draft; its neighbours outside do not."""
    two: dict[str, Any] = {"num_hidden_layers": 2, "layer_types": SIZES["layer_types"][:2]}
    fast, _, _ = make_drafters("dflash2", 16, tmp_path, monkeypatch, **two)
    for seed, count in enumerate((9, 4)):
        show(fast, count, seed)
    found, kinds = hidden_of(fast, monkeypatch), []
    fast.draft(mx.array([ANCHOR]), 1)
    for buffer in fast._buffers:
        live = range(buffer.start, buffer.start + buffer.rows)
        for row in (live.start - 1, live.start, live.stop - 1, live.stop):
            if row >= 0:
                kept = buffer._values[:, :, row]
                buffer._values[:, :, row] = -3.0
                fast.draft(mx.array([ANCHOR]), 1)
                buffer._values[:, :, row] = kept
                assert mx.array_equal(found[-1], found[0]) == (row not in live), (live, row)
                kinds.append(row in live)
    assert kinds == [False, True, True, False, True, True, False]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("how", ["several parts", "a launch a step"])
def test_launches_do_not_matter(
    emulated: CudaOnCpu, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits: list[list[mx.array]] = []
    calls: list[int] = []
    for apart in (False, True):
        with monkeypatch.context() as patch:
            fast, _, _ = make_drafters("dflash2", 4, tmp_path, patch)
            if apart and how == "several parts":
                for asked in ("is_small", "shares"):
                    patch.setattr(CudaKernels, asked, lambda self, layer: False)
                patch.setattr(fast, "_fused", fused_again(fast))
            elif apart:
                patch.setattr(fused, "joins_layer", lambda layer, rows: False)
            found = hidden_of(fast, patch)
            start = len(emulated.calls)
            show(fast, 3, 1)
            fast.draft(mx.array([ANCHOR]), COUNT)
            calls.append(len(emulated.calls) - start)
            logits.append([*found, *contexts(fast)])
    for one, other in zip(*logits, strict=True):
        assert mx.array_equal(one, other)
    assert calls[0] == 2 + 3 and (calls[1] == 2 + 1 + 3 + 2) == (how == "several parts")


@pytest.mark.thinned(2)
@pytest.mark.parametrize("odd", [False, True], ids=["all fits", "a projection of 8 bits"])
def test_a_small_head_is_part_of_the_launch(
    emulated: CudaOnCpu, odd: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, _, _ = make_drafters("dflash2", 4, tmp_path, monkeypatch)
    if odd:
        plain = nn.Linear(WIDTH, SELECTOR["selector_rank"], bias=False)
        projection = nn.QuantizedLinear.from_linear(plain, 64, 8)
        projection.update(tree_map(in_bfloat16, projection.parameters()))
        fast.model.candidate_selector.hidden_projection = projection
    head = head_of(fast, monkeypatch)
    show(fast, 9, 1)
    paths, launches = [], []
    for whole in (None, head):
        monkeypatch.setattr(Ends, "head_projection", whole)
        monkeypatch.setattr(fast, "_fused", fused_again(fast))
        start = len(emulated.calls)
        paths.append([fast.draft(mx.array([anchor]), COUNT).tolist() for anchor in range(4)])
        launches.append(len(emulated.calls) - start)
    assert paths[0] == paths[1] and len({str(path) for path in paths[0]}) > 2
    expected = [4 * 4, 4 * 3] if odd else [4 * 4, 4 * 2]
    assert launches == expected, "numbers; up to the head, it and the choice, or all in one"


def head_of(drafter: DFlashDrafter, patch: pytest.MonkeyPatch) -> nn.Linear:
    """The target's head as a module, which the kernels compute wherever it stands."""
    head = nn.Linear(WIDTH, drafter.config.vocab_size, bias=False)
    ends: Any = drafter._ends
    head.weight = ends._head
    patch.setattr(ends, "head_logits", partial(CudaKernels().linear, head), raising=False)
    return head


@pytest.mark.parametrize("why", ["", "it scales", "it is large"])
def test_a_head_stays_apart_where_it_is_more_than_a_small_projection(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, _, _ = make_drafters("dflash2", 4, tmp_path, monkeypatch)
    head = head_of(fast, monkeypatch)
    monkeypatch.setattr(Ends, "head_projection", head)
    if why == "it scales":
        monkeypatch.setattr(fast, "config", replace(fast.config, output_multiplier=2.0))
    if why == "it is large":
        shares = CudaKernels.shares
        monkeypatch.setattr(
            CudaKernels, "shares", lambda self, one: one is not head and shares(self, one)
        )
    again = DFlashDrafter(fast.model, fast.config, fast._ends, fast._rope)
    assert again._fused is not None and again._fused._shares
    assert again._fused._projection is (None if why else head)


def test_a_large_drafter_starts_what_it_was_shown(
    emulated: CudaOnCpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, _, _ = make_drafters("dflash2", 4, tmp_path, monkeypatch)
    started: list[int] = []
    monkeypatch.setattr(fused, "start_on_gpu", lambda arrays: started.append(len(arrays)))
    show(fast, 3, 1)
    fast.draft(mx.array([ANCHOR]), COUNT)
    assert started == []
    monkeypatch.setattr(CudaKernels, "shares", lambda self, layer: False)
    monkeypatch.setattr(fast, "_fused", fused_again(fast))
    fast.draft(mx.array([ANCHOR]), COUNT)
    assert started == [2 * len(fast._buffers)]


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "changes",
    [{"attention_bias": True}, {"table_bits": 8, "input_embedding_scale": 3.0}],
    ids=["biases", "an embedding of 8 bits"],
)
def test_what_the_kernels_do_not_take_is_left_to_plain_operations(
    emulated: CudaOnCpu,
    changes: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fast, plain, exact = make_drafters("dflash2", 16, tmp_path, monkeypatch, **changes)
    for drafter in (fast, plain, exact):
        show(drafter, 5, 1)
    for mine, theirs in zip(contexts(fast), contexts(plain), strict=True):
        assert distance(mine, theirs) < 4e-2
    found = hidden_of(fast, monkeypatch)
    fast.draft(mx.array([ANCHOR]), COUNT)
    assert_as_near(found[0], plain, exact)


def test_layers_that_share_a_buffer_are_drawn_from_as_if_they_did_not(
    emulated: CudaOnCpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, plain, _ = make_drafters("dflash", 16, tmp_path, monkeypatch)
    for drafter in (fast, plain):
        show(drafter, 17, 2)  # by plain operations in both
    one, other = (one.block_hidden(mx.array([ANCHOR]), COUNT) for one in (fast, plain))
    assert mx.array_equal(one, other)
    for drafter in (fast, plain):
        mark = drafter.mark()
        show(drafter, 9, 3)
        drafter.return_to(mark)
    assert fast.context_lengths == plain.context_lengths == [11, 17, 11]
    one, other = (one.block_hidden(mx.array([ANCHOR]), COUNT) for one in (fast, plain))
    assert mx.array_equal(one, other)


def fused_again(drafter: DFlashDrafter) -> fused.FusedDraft:
    """Of the same weights, by what is patched now."""
    ends: Any = drafter._ends
    return fused.FusedDraft(
        drafter.model,
        drafter.config,
        drafter._groups,
        fused.DraftEnds(
            ends.embed_token_ids, drafter.block_logits, ends.embedding_table, ends.head_projection
        ),
        drafter._rope,
    )


def hidden_of(drafter: DFlashDrafter, patch: pytest.MonkeyPatch) -> list[mx.array]:
    """Fills with the hidden rows that each fused draft hands to the head."""
    found: list[mx.array] = []
    head: Any = drafter._fused
    inner = head._head

    def kept(hidden: mx.array) -> mx.array:
        found.append(hidden)
        logits: mx.array = inner(hidden)
        return logits

    patch.setattr(head, "_head", kept)
    return found


@pytest.mark.parametrize("dtype", [mx.int32, mx.uint32])
def test_a_block_is_fed_the_anchor_and_legal_drafts(emulated: CudaOnCpu, dtype: mx.Dtype) -> None:
    plain, fed = make_target("hybrid").backbone, mx.array([5])
    odd = [3, 0, 10**6, 99] + ([-1] if dtype == mx.int32 else [2**32 - 1])
    drafts = mx.array(odd, dtype=dtype)
    found, expected = block_ids(5, drafts, 100), plain.block_ids(fed, drafts, 100)
    assert mx.array_equal(found, expected) and found.dtype == mx.int32
    assert found[:5].tolist() == [5, 3, 0, 99, 99]


def test_taps_are_joined_in_their_order(emulated: CudaOnCpu) -> None:
    plain, start = make_target("hybrid").backbone, len(emulated.calls)
    for count, width, dtype in ((3, 32, mx.bfloat16), (2, 12, mx.float32), (4, 6, mx.bfloat16)):
        taps = [mx.random.normal((1, 5, width)).astype(dtype) for _ in range(count)]
        assert mx.array_equal(join_rows(taps), plain.join_taps(taps))
    assert len(emulated.calls) - start == 2, "12 bytes a row are no whole line: MLX's"


def test_packed_codebooks_are_not_fused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = raw_drafter("dflash2", **{**SIZES, **SELECTOR})
    config = read_drafter_config(write_config(tmp_path, raw))
    monkeypatch.setattr(fused, "cuda_in_use", lambda: True)
    model: Any = random_model(config, 16)
    assert fused.can_fuse(model, config, make_rope(config))
    book = nn.QuantizedEmbedding(config.vocab_size, 32, group_size=32, bits=4)
    model.candidate_selector.successor_codebook = book
    assert not fused.can_fuse(model, config, make_rope(config))


def test_layers_packed_in_other_ways_are_left_alone() -> None:
    layers: list[Any] = [nn.QuantizedLinear(64, 64, bias=False, bits=4, group_size=32)]
    layers.append(nn.QuantizedLinear(64, 64, bias=False, bits=4, group_size=32, mode="mxfp4"))
    assert not fit_together(layers, 4)
