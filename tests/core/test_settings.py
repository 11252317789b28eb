"""Settings: which place wins, what each wrong one says, and what the commands make of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dflash_suite.cli.app import app
from dflash_suite.core.errors import ConfigError
from dflash_suite.core.settings import FILE_NAME, KINDS, config_directory, read_settings

Place = Callable[[str], None]
CODE = "def f(x):\n"


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Place]:
    """Ways to set `max_tokens = N`, weakest first; the working directory is a fresh one."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    config_directory().mkdir(parents=True)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)

    def user(text: str) -> None:
        (config_directory() / FILE_NAME).write_text(text)

    def working(text: str) -> None:
        (here / FILE_NAME).write_text(text)

    def variable(text: str) -> None:
        name, value = text.split(" = ")
        monkeypatch.setenv("DFLASH_" + name.upper(), value)

    return {"user": user, "working": working, "variable": variable}


def shown(*args: str) -> dict[str, tuple[str, str]]:
    """--show-settings as {key: (value, source)}."""
    done = CliRunner().invoke(app, ["generate", "--show-settings", *args])
    assert done.exit_code == 0, done.stderr
    rows = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    return {key: (value, source) for key, value, source in rows}


def test_the_strongest_place_wins(places: dict[str, Place], tmp_path: Path) -> None:
    assert shown()["max_tokens"] == ("256", "default")
    expected = {
        "user": str(config_directory() / FILE_NAME),
        "working": str(tmp_path / "here" / FILE_NAME),
        "variable": "DFLASH_MAX_TOKENS",
    }
    for number, (name, place) in enumerate(places.items(), start=11):
        place(f"max_tokens = {number}")
        assert shown()["max_tokens"] == (str(number), expected[name])
    assert shown("-n", "99")["max_tokens"] == ("99", "option")
    assert read_settings()["max_tokens"].value == 13


def test_every_setting_is_an_option_of_generate(places: dict[str, Place]) -> None:
    assert set(shown()) == set(KINDS)


def test_settings_reach_the_run(places: dict[str, Place]) -> None:
    places["working"]('max_tokens = 3\nspeculation = "none"\nstop = ["zzz", "yyy"]\ngate = false')
    done = CliRunner().invoke(app, ["generate", "--raw", CODE, "--json"])
    found = json.loads(done.stdout)
    assert len(found["token_ids"]) == 3 and found["speculation"]["requested"] == "none"
    done = CliRunner().invoke(app, ["generate", "--raw", CODE, "--json", "-s", "dflash"])
    found = json.loads(done.stdout)
    assert found["speculation"]["route"] == "dflash2" and found["stats"]["rounds"] > 0


def test_doctor_takes_the_drafter_and_not_the_model(places: dict[str, Place]) -> None:
    places["user"]('model = "/no/such"\ndrafter = "/no/drafter"')
    alone = CliRunner().invoke(app, ["doctor", "--json"])
    assert "/no/such" not in alone.stdout
    both = CliRunner().invoke(app, ["doctor", "bundled:target", "--json"])
    assert both.exit_code == 1 and "/no/drafter" in both.stdout


@pytest.mark.parametrize(
    ("place", "text", "message"),
    [
        ("user", "max_token = 3", "did you mean max_tokens?"),
        ("working", "[generate]\nmax_tokens = 3", "which no command knows"),
        ("working", "max_tokens = '3'", "'max_tokens' is '3', expected a whole number"),
        ("working", "max_tokens = true", "expected a whole number"),
        ("working", "temperature = 'hot'", "expected a number"),
        ("working", "temperature = inf", "'temperature' is inf, expected a finite number"),
        ("working", "max_tokens = " + "9" * 5000, "is not TOML"),
        ("working", "stop = " + "[" * 20_000, "is not TOML"),
        ("variable", "temperature = nan", "TEMPERATURE is nan, expected a finite number"),
        ("working", "gate = 1", "expected true or false"),
        ("working", "stop = 'x'", "expected a list of texts"),
        ("working", "max_tokens =", "is not TOML"),
        ("variable", "max_tokens = three", "DFLASH_MAX_TOKENS is 'three', expected a whole number"),
        ("variable", "gate = maybe", "expected true or false"),
    ],
)
def test_what_is_wrong_is_named(
    places: dict[str, Place], place: str, text: str, message: str
) -> None:
    places[place](text)
    with pytest.raises(ConfigError, match="dflash|DFLASH") as caught:
        read_settings()
    assert message in str(caught.value)
    done = CliRunner().invoke(app, ["generate", "x"])
    assert done.exit_code == 1 and message in done.stderr and done.stdout == ""


def test_a_variable_s_switch_has_many_spellings(places: dict[str, Place]) -> None:
    for text, value in (("ON", True), (" 0", False), ("No", False), ("true", True)):
        places["variable"](f"gate = {text}")
        assert read_settings()["gate"].value is value


def test_another_tools_variable_is_a_note_and_an_empty_one_is_unset(
    places: dict[str, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They ended every command, doctor too."""
    monkeypatch.setenv("DFLASH_MAX_CTX", "4096")
    monkeypatch.setenv("DFLASH_TEMPERATURE", "")
    done = CliRunner().invoke(app, ["generate", "--show-settings"])
    assert done.exit_code == 0
    assert done.stderr.count("DFLASH_MAX_CTX") == 1 and "left out" in done.stderr
    assert "DFLASH_TEMPERATURE" not in done.stderr
    places["variable"]("max_token = 3")
    done = CliRunner().invoke(app, ["generate", "--show-settings"])
    assert done.exit_code == 0 and "did you mean DFLASH_MAX_TOKENS?" in done.stderr
    quiet = CliRunner().invoke(app, ["generate", "--show-settings", "-q"])
    assert quiet.stderr == ""


@pytest.mark.parametrize("place", ["user", "working"])
def test_keys_are_written_as_the_options_are(places: dict[str, Place], place: str) -> None:
    places[place]("max-tokens = 7")
    assert shown()["max_tokens"][0] == "7"
    places[place]("max-tokens = 7\nmax_tokens = 8")
    with pytest.raises(ConfigError, match="max_tokens twice"):
        read_settings()


def test_a_file_of_the_working_directory_is_named(places: dict[str, Place]) -> None:
    places["working"]("max_tokens = 3\nseed = 1")
    done = CliRunner().invoke(app, ["generate", "--show-settings"])
    assert "dflash.toml sets max_tokens, seed" in done.stderr


@pytest.mark.parametrize("key", ["model", "drafter", "mtp"])
def test_a_file_of_the_working_directory_chooses_no_model(
    places: dict[str, Place], key: str
) -> None:
    """It did so without a word, in a folder that somebody else made."""
    places["working"](f'{key} = "/no/such"')
    command = ["generate", "--raw", CODE, "-n", "2"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    assert f"sets {key} to '/no/such'" in done.stderr and "--trust-settings" in done.stderr
    for trusted in ([*command, "--trust-settings"], ["--trust-settings", *command]):
        done = CliRunner().invoke(app, trusted)
        assert done.exit_code == 1 and "/no/such" in done.stderr
        assert "may choose" not in done.stderr
    option = f"--{key}"
    done = CliRunner().invoke(app, [*command, f"{option}=/other"])
    assert "may choose" not in done.stderr and "/other" in done.stderr
    places["working"]("")
    places["user"](f'{key} = "/no/such"')
    done = CliRunner().invoke(app, command)
    assert "may choose" not in done.stderr and "/no/such" in done.stderr


def test_a_prompt_after_two_dashes_is_no_switch(places: dict[str, Place]) -> None:
    done = CliRunner().invoke(
        app, ["generate", "-n", "2", "-q", "--raw", "--json", "--", "--trust-settings"]
    )
    assert done.exit_code == 0 and json.loads(done.stdout)["prompt_tokens"] > 1
