"""The guards of a pair: from two config.json files, before any weights file is looked at."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash_suite.core.checkpoint.target_config import read_target_config
from dflash_suite.core.errors import (
    ConfigError,
    DflashError,
    DrafterMismatch,
    ModelNotFound,
    RouteUnavailable,
)
from dflash_suite.core.options import LoadOptions, Speculation
from dflash_suite.drafters.dflash.config import read_drafter_config
from dflash_suite.drafters.dflash.container import DrafterKind
from dflash_suite.drafters.guards import check_pair
from dflash_suite.drafters.pair import load_pair
from tests.kit import tiny
from tests.kit.tiny import raw_config, save_checkpoint
from tests.kit.tiny_drafter import raw_drafter, save_drafter, write_config

pytestmark = pytest.mark.quick

VOCAB = "{kind} drafter vocab 500 != target 512"
LAYERS = "{kind} drafter expects 9 target layers, target has 4"
HIDDEN = "{kind} drafter hidden size 96 != target 64"
TAPS = "{kind} drafter taps layer 4, but the target's layers are 0..3"
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"vocab_size": 500, "mask_token_id": 3}, VOCAB),
    ({"num_target_layers": 9}, LAYERS),
    ({"hidden_size": 96}, HIDDEN),
    ({"target_layer_ids": [1, 4]}, TAPS),
]
"""In the order of the guards."""


@pytest.fixture(params=["hybrid", "dense"])
def target(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A target directory with config.json and no weights; nested fields and flat ones."""
    return write_config(tmp_path / "target", raw_config(request.param))


def mismatch(target: Path, drafter: Path) -> str:
    """The error of an explicit request; it names both files."""
    with pytest.raises(DrafterMismatch) as caught:
        load_pair(LoadOptions(model=str(target), drafter=str(drafter), speculation="dflash"))
    message = str(caught.value)
    assert str(target / "config.json") in message and str(drafter / "config.json") in message
    return message


@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
@pytest.mark.parametrize("first", range(len(WRONG)))
def test_each_guard_has_its_message_and_its_place(
    target: Path, tmp_path: Path, kind: DrafterKind, first: int
) -> None:
    """Guard `first` fails, and so do all after it: its own message is the one that is given."""
    alone = write_config(tmp_path / "alone", raw_drafter(kind, **WRONG[first][0]))
    assert mismatch(target, alone).startswith(WRONG[first][1].format(kind=kind))
    changes = {key: value for change, _ in WRONG[first:] for key, value in change.items()}
    together = write_config(tmp_path / "together", raw_drafter(kind, **changes))
    assert mismatch(target, together).startswith(WRONG[first][1].format(kind=kind))
    assert sorted(path.name for path in together.iterdir()) == ["config.json"]


def test_a_tap_one_past_the_end_is_told_how_ids_count(target: Path, tmp_path: Path) -> None:
    """An export that counts layers from 1."""
    drafter = write_config(tmp_path / "drafter", raw_drafter(target_layer_ids=[4]))
    assert "ids count from 0; an export that counts from 1" in mismatch(target, drafter)


def test_a_tap_on_the_last_layer_is_legal(target: Path, tmp_path: Path) -> None:
    """It is the output before the final norm."""
    drafter = write_config(tmp_path / "drafter", raw_drafter(target_layer_ids=[1, 3]))
    check_pair(read_target_config(target), read_drafter_config(drafter))


def test_no_weights_file_is_opened_before_the_guards(target: Path, tmp_path: Path) -> None:
    """Files that no reader could survive stand where the weights belong."""
    drafter = write_config(tmp_path / "drafter", raw_drafter(num_target_layers=9))
    for directory in (target, drafter):
        (directory / "model.safetensors").write_bytes(b"\xff" * 64)
    assert "expects 9 target layers" in mismatch(target, drafter)


def test_a_matching_pair_is_told_which_files_are_missing(target: Path, tmp_path: Path) -> None:
    """The drafter's first: its headers are checked before the target is opened."""
    drafter = write_config(tmp_path / "drafter", raw_drafter())
    for missing in (drafter, target):
        with pytest.raises(ModelNotFound, match="has no (weights|tokenizer)") as caught:
            load_pair(LoadOptions(model=str(target), drafter=str(drafter), speculation="dflash"))
        assert str(missing) in str(caught.value)
        save_drafter(drafter)


@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
def test_a_matching_drafter_without_weights_is_named(tmp_path: Path, kind: DrafterKind) -> None:
    """The target is whole here (the bundled one), so the drafter's own weights are missed."""
    bundled = {"vocab_size": 4096, "num_target_layers": 8, "hidden_size": 256}
    drafter = write_config(tmp_path / "drafter", raw_drafter(kind, mask_token_id=3, **bundled))
    with pytest.raises(ModelNotFound, match="has no weights") as caught:
        load_pair(LoadOptions(drafter=str(drafter), speculation="dflash"))
    assert str(drafter) in str(caught.value)
    with pytest.raises(ModelNotFound, match="has no weights"):
        load_pair(LoadOptions(drafter=str(drafter), speculation="auto", exact=False))


def test_auto_goes_on_without_a_drafter_that_it_found_and_says_why(tmp_path: Path) -> None:
    """One that stands beside the target; one that was named is used, or is an error."""
    target = save_checkpoint(tmp_path / "target", mtp_num_hidden_layers=1)
    drafter = save_drafter(
        target / "drafter", raw_drafter(vocab_size=tiny.VOCAB // 2, mask_token_id=5)
    )
    beside = LoadOptions(model=str(target), exact=False)
    pair = load_pair(beside)
    mismatch = f"dflash2 drafter vocab {tiny.VOCAB // 2} != target {tiny.VOCAB}"
    assert pair.route.route == "none" and mismatch in pair.route.reason
    named = replace(beside, drafter=str(drafter))
    for loading in (named, replace(named, speculation="dflash")):
        with pytest.raises(DrafterMismatch, match=mismatch):
            load_pair(loading)
    assert load_pair(replace(named, speculation="none")).route.route == "none"


@pytest.mark.parametrize("name", ["nowhere", "empty", "target"])
@pytest.mark.parametrize("speculation", ["auto", "dflash"])
def test_a_named_drafter_that_is_none_is_an_error(
    tmp_path: Path, name: str, speculation: Speculation
) -> None:
    save_checkpoint(tmp_path / "target")
    (tmp_path / "empty").mkdir()
    given = LoadOptions(drafter=str(tmp_path / name), speculation=speculation, exact=False)
    with pytest.raises(DflashError, match=name):
        load_pair(given)


def test_a_named_head_that_is_none_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DflashError, match="empty"):
        load_pair(LoadOptions(mtp=str(tmp_path / "empty"), exact=False))


def test_none_opens_no_drafter_file(tmp_path: Path) -> None:
    """Not even the config.json of a drafter that was given."""
    pair = load_pair(
        LoadOptions(drafter=str(tmp_path / "nowhere"), speculation="none", exact=False)
    )
    assert pair.drafter is None and pair.route.route == "none"


def test_an_explicit_request_without_a_drafter_fails_before_the_target(target: Path) -> None:
    with pytest.raises(RouteUnavailable, match="no drafter was given"):
        load_pair(LoadOptions(model=str(target), speculation="dflash"))


def test_a_bad_drafter_config_is_the_first_error(target: Path, tmp_path: Path) -> None:
    """A missing key must surface by its name and not as a shape error."""
    raw = raw_drafter()
    del raw["dflash_config"]["target_layer_ids"]
    drafter = write_config(tmp_path / "drafter", raw)
    with pytest.raises(ConfigError, match=r"'dflash_config\.target_layer_ids'.* is missing"):
        load_pair(LoadOptions(model=str(target), drafter=str(drafter), speculation="dflash"))
