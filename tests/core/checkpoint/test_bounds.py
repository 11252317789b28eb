"""Sizes of a config.json are bounded before anything is built of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dflash_suite.core.checkpoint.bounds import EPSILONS, SIZES, check_bounds
from dflash_suite.core.checkpoint.target_config import read_target_config
from dflash_suite.core.errors import ConfigError
from dflash_suite.drafters.dflash.config import read_drafter_config
from dflash_suite.drafters.mtp.find import open_folder
from tests.kit.mutations import at_most
from tests.kit.places import CONFIGS
from tests.kit.tiny import raw_config, target_config
from tests.kit.tiny_drafter import raw_drafter, write_config

SECONDS = 5
HUGE = (10**5, 10**9, 2**63, 10**400)


@pytest.mark.parametrize("value", HUGE, ids=["1e5", "1e9", "2^63", "1e400"])
@pytest.mark.parametrize("key", ["num_hidden_layers", "num_attention_heads", "head_dim"])
@pytest.mark.parametrize("reader", ["hybrid", "dense", "drafter", "head"])
def test_a_huge_size_is_an_error_at_once(reader: str, key: str, value: int, tmp_path: Path) -> None:
    changes: Any = {key: value}
    named = rf"'(text_config\.)?{key}' is"
    with at_most(SECONDS), pytest.raises(ConfigError, match=named) as found:
        if reader == "drafter":
            read_drafter_config(write_config(tmp_path, raw_drafter(**changes)))
        elif reader == "head":
            folder = write_config(tmp_path, raw_config("hybrid", **changes))
            open_folder(folder, target_config())
        else:
            kind: Any = reader
            read_target_config(write_config(tmp_path, raw_config(kind, **changes)))
    assert "expected 1.." in str(found.value) and len(str(found.value)) < 1000


@pytest.mark.parametrize("key", SIZES)
def test_every_size_has_its_bounds(key: str) -> None:
    least, most = SIZES[key]
    check_bounds(Path("c"), {"": {key: least}, "inner.": {key: most}})
    for value in (least - 1, most + 1, 10**400):
        with pytest.raises(ConfigError, match=f"'inner.{key}'"):
            check_bounds(Path("c"), {"": {}, "inner.": {key: value}})


@pytest.mark.parametrize("value", [0, -1e-6, 2.0, 1e308, 10**400, float("nan"), "1e-6", True])
@pytest.mark.parametrize("key", EPSILONS)
def test_an_epsilon_that_is_none(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"'{key}'"):
        check_bounds(Path("c"), {"": {key: value}})


def test_no_published_config_is_out_of_bounds() -> None:
    files = [one for one in CONFIGS.glob("*.json") if ".tensors." not in one.name]
    for file in files:
        raw = json.loads(file.read_text())
        check_bounds(file, {"": raw, "text_config.": raw.get("text_config") or {}})
    assert len(files) > 20
