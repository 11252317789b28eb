"""`dflash doctor --probe`: measured, shown, stored, and what a later `generate` makes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from dflash_suite.cli.app import app
from dflash_suite.cli.text.bench import rich_table
from dflash_suite.cli.text.probe import tables, verdicts
from dflash_suite.core.exact import plan as exact
from dflash_suite.core.exact.plan import find_plan
from dflash_suite.core.options import GenerateOptions, LoadOptions
from dflash_suite.core.probe_store import load_probe, probe_directory, probe_key
from dflash_suite.core.target.target import Target
from dflash_suite.doctor.probe import measure as module
from dflash_suite.doctor.probe.measure import (
    compare_rows,
    find_exact,
    probe,
    probe_pair,
    store_report,
)
from dflash_suite.doctor.probe.options import ProbeOptions, parse_contexts
from dflash_suite.doctor.probe.report import ProbeReport
from dflash_suite.drafters.bundled.paths import ROOT as BUNDLED
from dflash_suite.drafters.pair import Pair, load_pair
from dflash_suite.drafters.stored_block import drafter_key
from tests.kit.doctor_pairs import save_pair
from tests.kit.places import ROOT
from tests.kit.planted import Fault, planted_target
from tests.kit.tiny import Precision, make_target, save_checkpoint
from tests.kit.tiny_drafter import save_drafter

PLAIN = {"NO_COLOR": "1", "COLUMNS": "80", "TERM": "dumb"}
QUICK = ProbeOptions((6, 20), (1, 2, 4), 8, repeats=1, prompts=1, max_tokens=8)


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache directory of the test's own, and little to measure."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "CPU_OPTIONS", QUICK)
    monkeypatch.setattr(exact, "CPU_CONTEXTS", (8,))
    monkeypatch.setenv("DFLASH_EXACT", "off")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], env=PLAIN)


def save(directory: Path, precision: Precision = "float32") -> Path:
    """A tiny pair, the drafter trained at 6 rows."""
    save_drafter(save_checkpoint(directory, precision=precision) / "drafter")
    return directory


def report_of(target: Target, options: ProbeOptions = QUICK) -> ProbeReport:
    """A probe of a target alone."""
    return probe(target, [], [], lambda: None, options)  # type: ignore[arg-type,return-value]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "4bit"])
def test_a_pair_is_probed_stored_and_used(tmp_path: Path, precision: Precision) -> None:
    pair = save(tmp_path / "pair", precision)
    dtype = "bfloat16" if precision == "bfloat16" else "float32"
    done = run("doctor", "--probe", pair, "--dtype", dtype, "--drafter-bits", 16, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["probe"]
    assert found["subject"]["dtype"] == dtype and found["subject"]["model"] == str(pair)
    checked = [(row["way"], row["width"], row["context"]) for row in found["rows"]]
    assert checked == [
        (way, width, context)
        for context in (6, 20)
        for way in ("one row", "same width")
        for width in (2, 4)
    ]
    for row in found["rows"]:
        assert row["equal"] == row["rows"] > 0 and row["flips"] == 0 and row["caches"]
    assert found["exact"]["width"] == 16 and not found["exact"]["pads"]
    assert [cost["context"] for cost in found["costs"]] == [6, 20]
    assert set(found["costs"][0]["pass_sec"]) == {"1", "2", "4"}
    (draft,) = found["drafts"]
    assert (draft["name"], draft["bits"], draft["trained"]) == ("dflash2", 16, 6)
    assert all(one["rounds"] > 0 and one["differing"] == 0 for one in draft["accept"])
    assert draft["best_block"] in {one["block"] for one in draft["accept"]}
    assert len(found["stored"]) == len(list(probe_directory().iterdir())) == 2

    best = draft["best_block"]
    options = ("-n", 4, "--dtype", dtype, "--drafter-bits", 16, "--model", pair, "--raw", "abc")
    later = run("generate", *options)
    assert later.exit_code == 0
    assert f"block {best} of 6 trained (stored probe of {found['date']})" in later.stderr
    block = json.loads(run("generate", *options, "--json").stdout)["speculation"]["block"]
    assert block["effective"] == best and block["source"] == f"stored probe of {found['date']}"
    for more, said in (
        (("--no-stored-probe",), "block 6 of 6 trained (default"),
        (("--block-size", 5), "block 5 of 6 trained (as asked)"),
        (("--dtype", "float16"), "block 6 of 6 trained (default"),
        (("--drafter-bits", 8), "block 6 of 6 trained (default"),
    ):
        assert said in run("generate", *options, *more).stderr
    switched_off = CliRunner().invoke(
        app, ["generate", *map(str, options)], env={**PLAIN, "DFLASH_STORED_PROBE": "off"}
    )
    assert "block 6 of 6 trained (default" in switched_off.stderr


def test_the_table_at_eighty_columns(tmp_path: Path) -> None:
    pair = save(tmp_path / "pair")
    done = run("doctor", pair, "--probe", "--probe-contexts", "9")
    assert done.exit_code == 0 and done.stderr == "" and "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("probe on cpu"))
    for line in lines[start:]:
        assert len(line) <= 80 or line.startswith(("probe on", "stored: "))
    text = "\n".join(lines[start:])
    assert "rows of a pass with equal bits, 9 tokens of context" in text
    assert "16 of 16" in text and "24 of 24" in text
    assert "passes, ms" in text and "9 tokens" in text
    assert "dflash2, 4 bits, 9 tokens of context" in text and "break-even" in text
    assert "ids of" in text and "equal plain decoding's" in text
    assert "--exact: blocks of up to 16 rows, at no cost" in text
    assert text.count("stored: ") == 2


def test_an_mtp_head_is_probed_stored_and_used(tmp_path: Path) -> None:
    """Its best number of drafts is the next start's default, and no more than that."""
    pair = save_pair(tmp_path / "pair")
    found = json.loads(run("doctor", pair, "--probe", "--json").stdout)["probe"]
    assert [draft["name"] for draft in found["drafts"]] == ["dflash2", "mtp"]
    assert found["drafts"][1]["trained"] is None
    assert len(found["stored"]) == 3
    best = found["drafts"][1]["best_block"] - 1
    assert 1 <= best <= 3, "of 4 rows at most; which of them, the machine's load decides"
    options = ("generate", "-n", 4, "-m", pair, "-s", "mtp", "--raw", "abc")
    for more, said in (
        ((), f"up to {best} drafts a round (stored probe of {found['date']})"),
        (("-k", 4), "up to 4 drafts a round (as asked)"),
        (("--no-stored-probe",), "up to 3 drafts a round (default)"),
        (("--mtp-hidden", "pre"), "up to 3 drafts a round (default)"),
    ):
        assert said in run(*options, *more).stderr, more


@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_in_a_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    pair, reached = save(tmp_path / "pair"), []

    def interrupted(*args: Any) -> Any:
        reached.append(args)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "find_exact", interrupted)
    done = run("doctor", pair, "--probe", *(["--json"] if as_json else []))
    assert done.exit_code == 130 and len(reached) == 1
    assert done.stderr == "interrupted before the probe was done\n"
    assert ("failures" in done.stdout) is not as_json and "probe on" not in done.stdout
    assert not as_json or done.stdout == ""
    assert not probe_directory().exists()


PLANTS: dict[Fault, tuple[str, Sequence[str]]] = {
    "width": ("one row", ("fixed keys", "padded")),
    "keys": ("same width", ("fixed keys", "padded")),
    "neighbour": ("same width", ("fixed keys", "padded")),
    "place": ("same width", ("fixed keys", "padded")),
}
CURED: dict[Fault, set[str]] = {
    "width": {"padded"},
    "keys": {"fixed keys", "padded"},
    "neighbour": set(),
    "place": set(),
}


@pytest.mark.parametrize("fault", list(PLANTS))
def test_a_planted_dependence_is_caught_and_shown(fault: Fault) -> None:
    """What differs, by how much, and which plan helps."""
    target = planted_target(fault)
    way, plans = PLANTS[fault]
    rows, problem = compare_rows(target, QUICK)
    assert problem == ""
    bad = [row for row in rows if row.plan == "as they are" and not row.agreement.holds]
    assert way in {row.way for row in bad}
    assert all(row.agreement.largest_difference > 0 for row in bad)
    cured = {plan for plan in plans if all(row.agreement.holds for row in rows if row.plan == plan)}
    assert {row.plan for row in rows} == {"as they are", *plans}
    assert cured == CURED[fault]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("fault", list(PLANTS))
def test_a_planted_dependence_in_the_report(fault: Fault) -> None:
    report = report_of(planted_target(fault))
    assert (report.exact.plan is None) == (not CURED[fault])
    first, *_ = tables(report)
    assert {"fixed keys", "padded"} <= set(first.columns)
    assert any(row[first.columns.index("difference")] != "0" for row in first.rows)
    shown = Console(width=80, file=StringIO())
    shown.print(rich_table(shown, first))
    assert isinstance(shown.file, StringIO)
    assert all(cell in shown.file.getvalue() for row in first.rows for cell in row)
    said = "\n".join(verdicts(report))
    if report.exact.plan is None:
        assert "--exact is refused here" in said and "differ at width" in said
    else:
        assert f"--exact: {report.exact.plan.describe()}; at 6 tokens a pass of" in said
        assert [context for context, _ in report.exact.cost] == [6, 20]
    json.dumps(report.to_dict())


def test_a_model_that_says_always_the_same_is_no_proof() -> None:
    """A vacuous comparison is said, and the rest of the probe goes on."""
    target = make_target()
    head = target.backbone.text.lm_head
    head.weight = head.weight * 0
    report = report_of(target)
    assert "the check says nothing" in report.rows_problem and report.rows == ()
    assert report.exact.plan is None and report.costs
    assert any("rows were not compared" in line for line in verdicts(report))


def test_a_target_of_no_directory_is_not_stored() -> None:
    """A script can probe any loaded target."""
    target = make_target()
    report = store_report(report_of(target), target, [])
    assert report.stored == () and "not stored" in report.notes[0]
    assert not probe_directory().exists()


def test_a_disk_that_takes_nothing_is_a_note(tmp_path: Path) -> None:
    pair = save(tmp_path / "pair")
    (tmp_path / "cache" / "dflash").mkdir(parents=True)
    (tmp_path / "cache" / "dflash" / "probes").write_text("in the way")
    done = run("doctor", pair, "--probe", "--drafter-bits", 16)
    assert done.exit_code == 0 and "could not be stored" in done.stdout


@pytest.mark.long
def test_the_bundled_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over its own prompts; both drafters' answers are right, and the next start is told."""
    monkeypatch.setattr(module, "find_plan", partial(find_plan, contexts=(8,), tokens=4))
    quick = ProbeOptions((8,), (1, 2, 3), 4, repeats=1, prompts=2, max_tokens=8)
    pair = load_pair(LoadOptions(dtype="float32", drafter_bits=16, exact=False))
    report = probe_pair(pair, bundled_target=True, options=quick)
    assert [draft.name for draft in report.drafts] == ["dflash2", "mtp"]
    assert [max(draft.profiles) for draft in report.drafts] == [3, 3]
    assert all(draft.answers and not draft.differing for draft in report.drafts)
    assert all(row.agreement.holds for row in report.rows) and len(report.rows) == 4
    key = probe_key(pair.target)
    assert key is not None and pair.drafter is not None
    with_drafter = drafter_key(key, pair.drafter)
    assert with_drafter is not None
    stored, plan = load_probe(with_drafter), load_probe(key)
    assert stored is not None and stored.block == report.drafts[0].best
    assert plan is not None and (plan.exact_width, plan.exact_pads) == (16, False)
    assert later_block() == stored.block


def later_block() -> int:
    """The block of a later start with the bundled pair."""
    pair = load_pair(
        LoadOptions(speculation="dflash", dtype="float32", drafter_bits=16, exact=False)
    )
    assert pair.drafter is not None
    return pair.drafter.block(GenerateOptions()).effective


def test_probe_alone_means_the_bundled_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Path, Any]] = []

    def stand_in(pair: Pair, **options: Any) -> ProbeReport:
        seen.append((pair.target.config.path, options["bundled_target"]))
        return report_of(make_target())

    monkeypatch.setattr(module, "probe_pair", stand_in)
    for arguments in (["--probe"], ["--probe", BUNDLED / "target"]):
        done = run("doctor", *arguments, "--drafter-bits", 16)
        assert done.exit_code == 0, done.output
    assert seen == [(BUNDLED / "target", True)] * 2


def test_a_broken_pair_is_not_probed(tmp_path: Path) -> None:
    pair = save(tmp_path / "pair")
    (pair / "drafter" / "model.safetensors").write_bytes(b"broken")
    done = run("doctor", pair, "--probe", "--json")
    assert done.exit_code == 1 and "not probed" in done.stderr
    assert "probe" not in json.loads(done.stdout) and not probe_directory().exists()


def test_a_target_without_a_drafter(tmp_path: Path) -> None:
    done = run("doctor", save_checkpoint(tmp_path / "target"), "--probe")
    assert done.exit_code == 0 and "no drafter to measure: no drafter was given" in done.stdout
    assert done.stdout.count("stored: ") == 1 and "passes, ms" in done.stdout


@pytest.mark.parametrize("text", ["", "abc", "64,", "0", "64,-1", "1.5"])
def test_contexts_that_are_none(text: str, tmp_path: Path) -> None:
    done = run("doctor", "--probe", "--probe-contexts", text)
    assert done.exit_code == 2 and "--probe-contexts is" in done.stderr


def test_a_context_beyond_the_models_positions_is_refused() -> None:
    done = run("doctor", "--probe", "--probe-contexts", "64,99999999")
    assert done.exit_code == 2 and "max_position_embeddings 1,024" in done.stderr
    assert "target" in done.stdout, "what was found before stands"


def test_contexts_come_in_order() -> None:
    assert parse_contexts("2000, 64,64") == (64, 2000)
    done = run("doctor", "--probe-contexts", "64")
    assert done.exit_code == 2 and "--probe, which was not given" in done.stderr


def test_exact_costs_nothing_where_rows_agree() -> None:
    assert find_exact(make_target(), QUICK).cost == ((6, 1.0), (20, 1.0))


def test_the_plain_doctor_loads_no_probe(tmp_path: Path) -> None:
    """It opens the tokenizer as the loader does, and measures nothing."""
    pair = save(tmp_path / "pair")
    code = (
        "import sys\n"
        "from dflash_suite.cli.app import app\n"
        "try: app(sys.argv[1:], prog_name='dflash')\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'dflash_suite.doctor.probe.measure'}\n"
        "heavy &= set(sys.modules)\n"
        "print(sorted(heavy), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "doctor", str(pair)],
        capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / ".src")},
    )  # fmt: skip
    assert "failures" in done.stdout and done.stderr.splitlines()[-1] == "[]"
