"""--speculation auto|dflash|mtp|none against what there is: {ok, bad, absent} of each kind."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash_suite.core.errors import DflashError, OptionError, RouteUnavailable
from dflash_suite.core.options import (
    GenerateOptions,
    LoadOptions,
    parse_mtp_hidden,
    parse_speculation,
)
from dflash_suite.core.report import Report
from dflash_suite.drafters.pair import Pair, load_pair
from dflash_suite.drafters.routes import Attempt, Route, choose_route
from tests.kit.decoding import generate
from tests.kit.tiny import VOCAB, prompt, save_checkpoint
from tests.kit.tiny_drafter import raw_drafter, save_drafter
from tests.kit.tiny_mtp import head_tensors, prefixed

HEADS = {
    "ok": head_tensors(),
    "bad": {**head_tensors(), "fc.weight": mx.zeros((64, 64))},
    "absent": None,
}
PROBLEMS = {
    ("dflash", "bad"): "dflash2 drafter vocab 256 != target 512",
    ("dflash", "absent"): "no drafter was given",
    ("mtp", "bad"): "expected [64, 128], found [64, 64]",
    ("mtp", "absent"): "promises an MTP head",
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Targets whose head is ok, bad or absent, and drafters that are ok or bad."""
    root = tmp_path_factory.mktemp("routes")
    for state, tensors in HEADS.items():
        directory = save_checkpoint(root / f"target-{state}", mtp_num_hidden_layers=1)
        if tensors is not None:
            mx.save_safetensors(str(directory / "mtp.safetensors"), prefixed(tensors))
    save_drafter(root / "drafter-ok")
    save_drafter(root / "drafter-bad", raw_drafter(vocab_size=VOCAB // 2, mask_token_id=5))
    return root


def load(places: Path, speculation: str, dflash: str, mtp: str, **more: Any) -> Pair:
    drafter = None if dflash == "absent" else str(places / f"drafter-{dflash}")
    return load_pair(
        LoadOptions(
            model=str(places / f"target-{mtp}"),
            drafter=drafter,
            speculation=parse_speculation(speculation),
            **more,
        )
    )


@pytest.mark.parametrize("mtp", ["ok", "bad", "absent"])
@pytest.mark.parametrize("dflash", ["ok", "bad", "absent"])
@pytest.mark.parametrize("speculation", ["auto", "dflash", "mtp", "none"])
def test_truth_table(places: Path, speculation: str, dflash: str, mtp: str) -> None:
    there = {"dflash": dflash, "mtp": mtp}
    if speculation == "auto" and dflash == "bad":  # it was named, so it is not passed over
        with pytest.raises(DflashError, match=PROBLEMS["dflash", "bad"]):
            load(places, speculation, dflash, mtp)
        return
    if speculation in there and there[speculation] != "ok":
        problem = PROBLEMS[speculation, there[speculation]]
        with pytest.raises(DflashError) as caught:
            load(places, speculation, dflash, mtp)
        assert problem in str(caught.value)
        absent = there[speculation] == "absent"
        assert isinstance(caught.value, RouteUnavailable) == absent
        return
    pair = load(places, speculation, dflash, mtp)
    wanted = {"auto": ["dflash", "mtp"], "none": []}.get(speculation, [speculation])
    names = {"dflash": "dflash2", "mtp": "mtp"}
    loaded = [names[kind] for kind in wanted if there[kind] == "ok"]
    assert pair.route.route == (loaded[0] if loaded else "none")
    assert pair.route.reserve == (loaded[1] if len(loaded) > 1 else None)
    assert [d.name for d in (pair.drafter, pair.reserve) if d is not None] == loaded
    for kind in wanted:
        problem = PROBLEMS.get((kind, there[kind]), "")
        assert problem in pair.route.reason  # the reason is always said
    assert pair.route.reason and pair.route.requested == speculation
    generation = generate(pair, prompt(8), GenerateOptions(max_tokens=12, gate=False))
    for _ in generation:
        pass
    ran = pair.route.route
    rounds = generation.stats.rounds_by_route
    assert set(rounds) == {ran} and sum(rounds.values()) > 0  # no trace of the other kind
    assert (generation.stats.rounds > 0) == (ran != "none")


def test_without_a_gate_the_reserve_stays_unopened(places: Path) -> None:
    pair = load(places, "auto", "ok", "ok", reserve=False)
    assert pair.route.route == "dflash2" and pair.reserve is None
    assert load(places, "auto", "absent", "ok", reserve=False).route.route == "mtp"


def test_an_explicit_route_fails_before_the_big_load(places: Path, tmp_path: Path) -> None:
    """The target's weights are gone, yet the head's absence is what is said."""
    directory = tmp_path / "target"
    shutil.copytree(places / "target-absent", directory)
    file = directory / "model.safetensors"
    header = 8 + int.from_bytes(file.read_bytes()[:8], "little")
    whole = file.read_bytes()
    file.write_bytes(whole[:header] + b"\x00" * (len(whole) - header))
    with pytest.raises(RouteUnavailable, match="--speculation mtp cannot run: .*--mtp DIR"):
        load_pair(LoadOptions(model=str(directory), speculation="mtp"), Report(say=pytest.fail))


@pytest.mark.parametrize("given", ["mtp", "drafter"])
def test_a_head_in_a_folder_of_its_own(places: Path, tmp_path: Path, given: str) -> None:
    """By --mtp, and by --drafter that names such a folder."""
    text = json.loads((places / "target-absent" / "config.json").read_text())["text_config"]
    head = tmp_path / "head"
    head.mkdir()
    (head / "config.json").write_text(
        json.dumps({"model_type": "qwen3_5_mtp", "text_config": text})
    )
    mx.save_safetensors(str(head / "model.safetensors"), head_tensors(hf=False))
    target = str(places / "target-absent")
    by_mtp = LoadOptions(model=target, mtp=str(head))
    by_drafter = LoadOptions(model=target, drafter=str(head))
    asked = by_mtp if given == "mtp" else by_drafter
    for speculation in ("auto", "mtp"):
        pair = load_pair(replace(asked, speculation=speculation))
        assert pair.route.route == "mtp"
    both = load_pair(
        LoadOptions(
            model=target, drafter=str(places / "drafter-ok"), speculation="auto", mtp=str(head)
        )
    )
    assert (both.route.route, both.route.reserve) == ("dflash2", "mtp")
    with pytest.raises(DflashError):
        load_pair(LoadOptions(model=target, drafter=str(head), speculation="dflash"))


def test_none_opens_no_file_of_a_drafter(places: Path) -> None:
    pair = load_pair(
        LoadOptions(
            model=str(places / "target-bad"),
            drafter="/nowhere",
            speculation="none",
            mtp="/nowhere/either",
        )
    )
    assert pair.drafter is pair.reserve is None
    assert pair.route.reason == "speculation is off by request"


def test_the_pre_norm_variant_is_selectable(places: Path) -> None:
    for variant, taps in (("post", ()), ("pre", (3,))):
        pair = load(places, "mtp", "absent", "ok", mtp_hidden=variant)
        assert pair.drafter is not None and pair.drafter.tap_ids == taps


def test_mtp_hidden_values() -> None:
    assert parse_mtp_hidden(" Pre ") == "pre"
    with pytest.raises(OptionError, match=r"expected post\|pre"):
        parse_mtp_hidden("both")


def test_options_without_effect_are_named() -> None:
    asked = GenerateOptions(block_size=4)
    nothing, usual, elsewhere = GenerateOptions(), LoadOptions(), LoadOptions(mtp="/nope")
    assert Route("mtp", "mtp", "").notes(asked, usual) == [
        "--block-size concerns DFlash alone and is ignored on route mtp"
    ]
    assert Route("none", "none", "").notes(asked, usual)
    assert not Route("auto", "dflash2", "", "mtp").notes(asked, usual)
    assert not Route("mtp", "mtp", "").notes(nothing, usual)
    assert Route("dflash", "dflash2", "").notes(nothing, elsewhere) == [
        "--mtp concerns an MTP head alone and is ignored: none is loaded"
    ], "never looked at"
    refused = Route("auto", "dflash2", "/nope is no head")
    assert not refused.notes(nothing, elsewhere), "its reason says so"


def test_the_document_says_the_reserve() -> None:
    attempts = [Attempt("dflash2"), Attempt("mtp")]
    assert choose_route("auto", attempts).to_dict() == {
        "requested": "auto",
        "route": "dflash2",
        "reason": "dflash2 drafter loaded; mtp in reserve",
        "reserve": "mtp",
    }
