"""Exit codes of errors: a device that fails is no mistake of the user's."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from dflash_suite.cli.app import Group
from dflash_suite.core import errors


@pytest.mark.parametrize(
    ("kind", "code"),
    [(errors.DeviceError, 1), (errors.OptionError, 2), (errors.TensorError, 1)],
)
def test_only_a_value_that_no_run_could_use_is_a_usage_error(
    kind: type[errors.DflashError], code: int
) -> None:
    app = typer.Typer(cls=Group)

    @app.command()
    def one() -> None:
        raise kind("what was found")

    @app.command()
    def other() -> None: ...

    done = CliRunner().invoke(app, ["one"])
    assert done.exit_code == code and "what was found" in done.stderr


def test_the_tree_names_every_error() -> None:
    tree = errors.__doc__ or ""
    for name, found in vars(errors).items():
        if isinstance(found, type) and issubclass(found, errors.DflashError):
            assert name in tree
