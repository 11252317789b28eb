"""Every target family: same ids as mlx-lm alone, and caches as if only kept tokens had been fed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import pytest
from mlx_lm.models.cache import RotatingKVCache

from dflash_suite.core.checkpoint.families import FAMILIES, Family, find_family
from dflash_suite.core.checkpoint.target_config import read_target_config
from dflash_suite.core.decode.loop import Generation
from dflash_suite.core.errors import UnsupportedModel
from dflash_suite.core.loading.load import LoadedTarget
from dflash_suite.core.options import GenerateOptions
from dflash_suite.core.target.families import BACKBONES
from dflash_suite.core.target.target import Target
from tests.kit.families import CONFIGS, DENSE, SLIDING, family_config, load_family, save_family
from tests.kit.scripted import ScriptedDrafter, mixed
from tests.kit.snapshots import assert_as_fed_alone, fed_alone, meaning
from tests.kit.tiny import LAYERS, VOCAB, PieceDetokenizer, assert_varied, prompt, stock_greedy

QUANTIZED = {"group_size": 32, "bits": 4}
PROMPT_TOKENS, NEW_TOKENS, BLOCK = 20, 40, 6
PRECISIONS = [(name, precision) for name in CONFIGS for precision in ("float32", "4bit")]
PRECISIONS += [(name, "bfloat16") for name in DENSE]


def open_family(directory: Path, name: str, precision: str, seed: int = 0) -> LoadedTarget:
    bfloat = precision == "bfloat16"
    save_family(
        directory,
        name,
        quantization=QUANTIZED if precision == "4bit" else None,
        dtype=mx.bfloat16 if bfloat else mx.float32,
        seed=seed,
    )
    return load_family(directory, "bfloat16" if bfloat else "float32")


def scripted(continuation: list[int]) -> ScriptedDrafter:
    """Every acceptance from none to all, in turn, with the first and the last layer tapped."""
    return ScriptedDrafter(
        mixed(VOCAB, BLOCK - 1), continuation, PROMPT_TOKENS, BLOCK, tap_ids=(0, LAYERS - 1)
    )


def speculate(target: Target, ids: list[int], continuation: list[int]) -> Generation:
    """A finished run whose drafts were right and wrong."""
    options = GenerateOptions(max_tokens=NEW_TOKENS, block_size=BLOCK, gate=False)
    run = Generation(
        target, ids, PieceDetokenizer(), drafter=scripted(continuation), options=options
    )
    list(run)
    assert run.stats.rounds > 5
    assert 0 < run.stats.accepted < run.stats.drafted
    return run


def plain(target: Target, ids: list[int]) -> list[int]:
    run = Generation(target, ids, PieceDetokenizer(), options=GenerateOptions(NEW_TOKENS))
    list(run)
    return run.emitter.token_ids


def top_two_margin(target: Target, ids: list[int]) -> float:
    """How near the two likeliest next ids are: what a flip is judged by."""
    hidden = target.forward_with_taps(mx.array([ids]), target.make_cache()).hidden
    top = mx.sort(target.logits_from_hidden(hidden)[0, -1].astype(mx.float32))[-2:]
    low, high = cast(list[float], top.tolist())
    return high - low


def assert_same_ids(target: Target, ids: list[int], own: list[int], stock: list[int]) -> None:
    for index, (mine, theirs) in enumerate(zip(own, stock, strict=True)):
        assert mine == theirs, (
            f"token {index} is {mine}, mlx-lm alone says {theirs}; top-2 margin "
            f"{top_two_margin(target, ids + stock[:index]):.3g}"
        )


def in_temporal_order(layer: Any) -> list[mx.array]:
    """Keys and values of the rows that the next token may see, oldest first."""
    rows = min(layer.offset, layer.max_size)
    order: Any = layer._temporal_order
    return [order(array)[:, :, -rows:] for array in (layer.keys, layer.values)]


def assert_window_as_fed_alone(cache: list[Any], model: Any, ids: list[int]) -> int:
    """Full layers within 1e-5 of their largest value, sliding ones too once the ring has wrapped:
    there mlx-lm's block and its single rows sum in another order. Returns the sliding layers."""
    sliding = 0
    for own, stock in zip(cache, fed_alone(model, ids, PROMPT_TOKENS), strict=True):
        assert own.offset == stock.offset == len(ids)
        pairs: Any
        if isinstance(own, RotatingKVCache):
            sliding += 1
            assert own.offset > 2 * own.max_size, "the ring never wrapped"
            pairs = zip(in_temporal_order(own), in_temporal_order(stock), strict=True)
        else:
            kept = slice(0, own.offset)
            pairs = [
                (own.keys[:, :, kept], stock.keys[:, :, kept]),
                (own.values[:, :, kept], stock.values[:, :, kept]),
            ]
        for mine, theirs in pairs:
            assert mine.shape == theirs.shape
            assert mx.all(mx.abs(mine - theirs) <= 1e-5 * mx.abs(theirs).max()).item()
    return sliding


def test_every_family_has_a_decoder_and_is_tested() -> None:
    assert {family.decoder for family in FAMILIES.values()} == set(BACKBONES)
    assert {name.split("-")[0] for name in CONFIGS} == set(FAMILIES)


def test_a_new_family_is_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read, repaired, loaded, held to mlx-lm's own forward and decoded: nothing else names it."""
    raw = {**family_config("llama"), "model_type": "qwen2", "rope_parameters": {"rope_theta": 5e5}}
    del raw["rope_theta"]
    monkeypatch.setitem(CONFIGS, "qwen2", raw)
    with pytest.raises(UnsupportedModel, match="'qwen2' is not supported"):
        load_family(save_family(tmp_path, "qwen2"))
    row = Family("qwen2", "plain", "flat", aliases=("qwen2_text",))
    monkeypatch.setitem(FAMILIES, "qwen2", row)
    config = read_target_config(tmp_path)
    assert config.repairs.overrides == {"rope_theta": 5e5} and find_family("qwen2_text") is row
    target, ids = load_family(tmp_path).target, prompt(PROMPT_TOKENS)
    stock = stock_greedy(target.backbone.model, ids, NEW_TOKENS + BLOCK)
    own = speculate(target, ids, stock).emitter.token_ids
    assert_same_ids(target, ids, own, stock[:NEW_TOKENS])


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("name", "precision"), PRECISIONS)
def test_identity_and_rollback(tmp_path: Path, name: str, precision: str) -> None:
    target = open_family(tmp_path, name, precision).target
    model, ids = target.backbone.model, prompt(PROMPT_TOKENS)
    stock = stock_greedy(model, ids, NEW_TOKENS + BLOCK)
    assert_varied(stock, within=NEW_TOKENS)
    run = speculate(target, ids, stock)
    own = run.emitter.token_ids
    assert_same_ids(target, ids, own, stock[:NEW_TOKENS])
    fed = ids + own[:-1]
    if name in SLIDING:
        assert assert_window_as_fed_alone(run.cache, model, fed) > 0
    else:
        assert_as_fed_alone(run.cache, model, fed, PROMPT_TOKENS)


@pytest.mark.parametrize("name", SLIDING)
def test_a_rolled_back_window_is_that_of_the_kept_rows_to_the_last_bit(
    tmp_path: Path, name: str
) -> None:
    """Against feeding the same rows in a block of their own: no order of summation differs."""
    target = open_family(tmp_path, name, "float32").target
    ids = prompt(60)
    for start in (3, 11, 12, 30):
        for keep in range(2, BLOCK + 1):
            caches = target.make_cache(), target.make_cache()
            for cache in caches:
                target.forward_with_taps(mx.array([ids[:start]]), cache)
            block = mx.array([ids[start : start + BLOCK]])
            result = target.verify_rows(block, caches[0], ())
            target.rollback(caches[0], result.tape, keep, BLOCK - keep)
            target.forward_with_taps(block[:, :keep], caches[1])
            for own, other in zip(*caches, strict=True):
                assert own.offset == other.offset == start + keep
                if isinstance(own, RotatingKVCache):
                    assert mx.array_equal(in_temporal_order(own)[0], in_temporal_order(other)[0])
                    assert mx.array_equal(in_temporal_order(own)[1], in_temporal_order(other)[1])
                else:
                    assert meaning([own]) == meaning([other])


def test_two_pairs_in_one_process_leave_plain_decoding_as_in_a_fresh_one(tmp_path: Path) -> None:
    """Nothing of a run may live on in a class, a module or another model."""
    names = ("gpt_oss", "qwen3_5_moe")
    opened = {name: open_family(tmp_path / name, name, "4bit", seed=5) for name in names}
    ids = prompt(PROMPT_TOKENS)
    script = (
        "import json, sys; import mlx.core as mx\n"
        "from mlx_lm.generate import generate_step; from mlx_lm.utils import load_model\n"
        "from pathlib import Path\n"
        "ids, count = json.loads(sys.argv[1]), int(sys.argv[2])\n"
        "for directory in sys.argv[3:]:\n"
        "    model, _ = load_model(Path(directory))\n"
        "    steps = generate_step(mx.array(ids), model, max_tokens=count)\n"
        "    print(json.dumps([int(token) for token, _ in steps]))\n"
    )
    count = str(NEW_TOKENS + BLOCK)
    arguments = [json.dumps(ids), count, *(str(tmp_path / name) for name in names)]
    fresh = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True
    )
    references = dict(zip(names, map(json.loads, fresh.stdout.splitlines()), strict=True))
    options = GenerateOptions(max_tokens=NEW_TOKENS, block_size=BLOCK, gate=False)
    runs = {
        name: Generation(
            opened[name].target,
            ids,
            PieceDetokenizer(),
            drafter=scripted(references[name]),
            options=options,
        )
        for name in names
    }
    # Step by step in turn, both alive at once.
    live = {name: iter(run) for name, run in runs.items()}
    while live:
        for name in list(live):
            if next(live[name], None) is None:
                del live[name]
    for name in names:
        expected = references[name][:NEW_TOKENS]
        assert_varied(expected, within=NEW_TOKENS)
        assert runs[name].emitter.token_ids == expected
        assert 0 < runs[name].stats.accepted < runs[name].stats.drafted
        assert plain(opened[name].target, ids) == expected
