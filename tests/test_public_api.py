"""The public names of `dflash_suite`: there, typed, and cheap to ask for."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import fields
from typing import get_type_hints

import pytest

import dflash_suite
from dflash_suite.core import errors
from dflash_suite.core.options import LoadOptions
from dflash_suite.drafters.load_keywords import LoadKeywords

pytestmark = pytest.mark.quick


def test_every_public_name_is_there() -> None:
    homes = [name for names in dflash_suite.HOMES.values() for name in names]
    assert sorted([*homes, "__version__"]) == sorted(dflash_suite.__all__)
    for name in dflash_suite.__all__:
        assert getattr(dflash_suite, name) is not None
    assert dir(dflash_suite) == sorted(dflash_suite.__all__)


def test_every_error_is_public() -> None:
    defined = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    assert defined <= set(dflash_suite.__all__) and "DflashError" in defined


def test_functions_and_methods_are_annotated() -> None:
    checked = 0
    for name in dflash_suite.__all__:
        value = getattr(dflash_suite, name)
        methods = [one for one in vars(value).values() if inspect.isfunction(one)] if (
            inspect.isclass(value)
        ) else [value] if inspect.isfunction(value) else []  # fmt: skip
        for method in methods:
            if not method.__name__.startswith("_"):
                assert "return" in method.__annotations__, f"{name}.{method.__name__}"
                checked += 1
    assert checked > 10


def test_keywords_of_load_are_the_fields_of_load_options() -> None:
    named = {"model", "drafter", "speculation"}
    wanted = {field.name: field.type for field in fields(LoadOptions) if field.name not in named}
    assert LoadKeywords.__annotations__.keys() == wanted.keys()
    options, keywords = get_type_hints(LoadOptions), get_type_hints(LoadKeywords)
    assert {name: options[name] for name in wanted} == keywords


def test_the_package_itself_imports_nothing_heavy() -> None:
    code = (
        "import sys, dflash_suite\n"
        "dir(dflash_suite)\n"
        "print({'mlx', 'mlx_lm', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
