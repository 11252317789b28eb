"""The table of methods: every --speculation value but auto and none is a row."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args

import pytest

from dflash_suite.core.options import GenerateOptions, LoadOptions, Speculation
from dflash_suite.drafters.bench.arm_specs import ArmSpec
from dflash_suite.drafters.methods.table import METHODS, method_of, methods_for

pytestmark = pytest.mark.quick


def test_rows_are_the_values_of_speculation() -> None:
    rows = {method.speculation for method in METHODS}
    assert rows == set(get_args(Speculation)) - {"auto", "none"}
    assert methods_for("auto") == METHODS and methods_for("none") == ()
    assert all(methods_for(method.speculation) == (method,) for method in METHODS)


def test_a_drafter_is_of_one_method() -> None:
    for name, speculation in (("dflash", "dflash"), ("dflash2", "dflash"), ("mtp", "mtp")):
        assert [m.speculation for m in METHODS if m.owns(name)] == [speculation]
    assert method_of("none") is None


def test_named_options_exist_and_belong_to_one_method() -> None:
    loading = {field.name for field in fields(LoadOptions)}
    request = {field.name for field in fields(GenerateOptions)}
    arm = {field.name for field in fields(ArmSpec)}
    named = [name for method in METHODS for name in (*method.load_options, *method.request_options)]
    assert len(named) == len(set(named)) and set(named) < arm
    for method in METHODS:
        assert set(method.noted_options) <= set(method.load_options) <= loading
        assert set(method.request_options) <= request
