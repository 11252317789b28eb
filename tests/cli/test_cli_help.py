"""`--help` at 80 columns, and newcomers' options: aliases work, others are refused with advice."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from dflash_suite.cli.app import app
from dflash_suite.cli.options.foreign import MLX_LM

COMMANDS = ("generate", "chat", "quantize", "doctor", "bench")


@pytest.fixture(autouse=True)
def narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")


def help_of(*arguments: str) -> str:
    return CliRunner().invoke(app, [*arguments]).output


@pytest.mark.parametrize("name", COMMANDS)
def test_no_name_or_value_is_cut_at_80_columns(name: str) -> None:
    text = help_of(name, "--help")
    assert max(map(len, text.splitlines())) <= 80 and "…" not in text
    command = getattr(typer.main.get_command(app), "commands")[name]  # noqa: B009
    shown = 0
    for one in command.params:
        for option in (*one.opts, *one.secondary_opts):
            if option.startswith("--"):
                assert option in text, option
                shown += 1
        if isinstance(one.metavar, str):
            assert one.metavar in text, one.metavar
    assert shown > 5


def test_groups_of_generate_in_order_the_common_ones_first() -> None:
    text = help_of("generate", "--help")
    groups = ("Prompt", "Model", "Speculation", "Sampling", "Output", "Advanced")
    places = [text.index(f"─ {group} ") for group in groups]
    assert places == sorted(places)


def test_the_command_alone_shows_three_examples() -> None:
    text = help_of()
    examples = [line.strip() for line in text.split("Examples:")[1].splitlines() if line.strip()]
    assert len(examples) == 3 and all(line.startswith("dflash ") for line in examples)


@pytest.mark.parametrize("option", sorted(MLX_LM))
def test_an_option_of_mlx_lm_is_refused_by_name(option: str) -> None:
    done = CliRunner().invoke(app, ["generate", option, "4"])
    assert done.exit_code == 2
    assert f"{option} is an option of mlx-lm" in done.stderr and MLX_LM[option] in done.stderr


def test_text_behind_a_double_dash_is_no_option() -> None:
    done = CliRunner().invoke(app, ["generate", "-m", "/nowhere", "--", "--kv-bits"])
    assert done.exit_code == 1 and "mlx-lm" not in done.stderr


def test_aliases() -> None:
    one = ["generate", "--raw", "-n", "4", "-q", "-s", "none"]
    by_argument = CliRunner().invoke(app, [*one, "def f("])
    by_option = CliRunner().invoke(app, [*one, "--prompt", "def f(", "--temp", "0"])
    assert by_argument.exit_code == by_option.exit_code == 0
    assert by_argument.stdout == by_option.stdout != ""
    both = CliRunner().invoke(app, [*one, "def f(", "--prompt", "def f("])
    assert both.exit_code == 2 and "not both" in both.stderr


@pytest.mark.parametrize("place", ["variable", "file"])
def test_help_and_version_need_no_sound_settings(
    place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    if place == "variable":
        monkeypatch.setenv("DFLASH_TEMPERATURE", "hot")
    else:
        (tmp_path / "dflash.toml").write_text("temperature = 'hot'")
    assert CliRunner().invoke(app, ["generate", "-n", "1"]).exit_code == 1
    for arguments in (["--version"], ["--help"], *([name, "--help"] for name in COMMANDS)):
        assert CliRunner().invoke(app, arguments).exit_code == 0, arguments
    behind = CliRunner().invoke(app, ["generate", "--", "--help"])
    assert behind.exit_code == 1 and "temperature" in behind.stderr.lower()
