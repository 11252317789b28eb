"""`dflash bench`: arms and prompts by options, tables, documents, exit codes, Ctrl-C."""

from __future__ import annotations

import csv
import io
import json
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from dflash_suite.cli.app import app
from dflash_suite.cli.export import bench_documents as bench_export
from dflash_suite.cli.export import bench_plot
from dflash_suite.cli.text import bench as bench_render
from dflash_suite.cli.text.bench_tables import make_tables
from dflash_suite.core.bench.identity import Difference
from dflash_suite.core.bench.options import BenchOptions
from dflash_suite.core.bench.report import BenchReport, make_report
from dflash_suite.core.bench.runner import Bench
from dflash_suite.core.bench.speed import compare_pairs
from dflash_suite.core.bench.sweep import find_best
from dflash_suite.core.bench.types import BenchPrompt
from dflash_suite.core.errors import OptionError
from dflash_suite.core.exact.exact_plan import ExactPlan
from dflash_suite.core.exact.plan import ExactTarget
from dflash_suite.core.loading.load import LoadedTarget
from dflash_suite.core.options import LoadOptions
from dflash_suite.drafters.bench.arm_specs import ab_specs, parse_arm, parse_sweep
from dflash_suite.drafters.bench.arms import ArmLoader
from dflash_suite.drafters.bench.prompts import collect_prompts, kinds_of

QUICK = ["--max-prompts", "2", "--repeats", "1", "--max-tokens", "8"]
CONTEXT = {
    "device": {"kind": "cpu", "name": "a CPU", "cores": 2, "memory_bytes": 8e9, "system": "Linux"},
    "versions": {"mlx": "1.2.3"},
    "commit": "0123456789abcdef+changes",
    "settings": {
        "target": "bundled:target", "compute_dtype": "float32", "max_tokens": 12, "repeats": 1,
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def plain_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """No colour and a fixed width, whatever the surroundings."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")


def run(*args: str) -> Result:
    return CliRunner().invoke(app, ["bench", *args])


def finished(*args: str) -> str:
    result = run(*args)
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """The issue's own command, short."""
    parsed: dict[str, Any] = json.loads(finished("--ab", "mtp", *QUICK, "--json"))
    return parsed


def test_ab_mtp_is_dflash_against_the_head(document: dict[str, Any]) -> None:
    first, second = document["arms"]
    assert (first["name"], second["name"]) == ("dflash2", "mtp k=3")
    assert first["options"]["requested"] == "auto" and second["options"]["requested"] == "mtp"
    assert first["options"]["gate"] == second["options"]["gate"] == "off"
    for one, drafts in ((first, 6), (second, 3)):
        accept = one["accept"]
        assert len(accept["accepts"]) == len(accept["trials"]) == drafts
        assert accept["rounds"] == accept["trials"][0] > 0
        assert 0 < accept["accepted"] <= accept["drafted"] == sum(accept["trials"])
        assert one["tokens_per_round"] == accept["emitted"] / accept["rounds"] > 1
        assert one["identity"]["equal"] == 2 and one["identity"]["differences"] == []
        assert one["tokens_per_second"]["median"] > 0
        assert len(one["samples"]) == 2
        assert set(one["phase_sec_per_pass"]) == {
            "draft", "verify", "accept", "rollback", "other",
        }  # fmt: skip
    assert first["identity"]["sha256"] == second["identity"]["sha256"]


def test_the_document_says_where_it_comes_from(document: dict[str, Any]) -> None:
    assert set(document) >= {
        "schema", "device", "versions", "commit", "settings", "arms", "comparisons", "prompts",
        "models", "partial", "verify_width_sec",
    }  # fmt: skip
    assert document["schema"] == "dflash.bench/1" and document["partial"] is False
    assert document["comparisons"][0]["verdict"] == "too few pairs"
    names = {Path(place).name: files for place, files in document["models"].items()}
    assert set(names) == {"target", "dflash2"}
    assert all("config.json" in files and "model.safetensors" in files for files in names.values())
    assert [prompt["kind"] for prompt in document["prompts"]] == ["hand", "hand-chat"]
    assert all(len(prompt["sha256"]) == 64 for prompt in document["prompts"])
    assert list(document["verify_width_sec"]) == [str(rows) for rows in range(1, 8)]


@pytest.fixture(scope="module")
def report(bundled_target: LoadedTarget) -> BenchReport:
    """Plain decoding, two block sizes, the head: short answers to two short prompts."""
    specs = parse_sweep("block-size=2,5") + [parse_arm("mtp")]
    loader = ArmLoader(bundled_target.target.config, LoadOptions())
    arms = [loader.build(spec, loader.candidates(spec), bundled_target.target) for spec in specs]
    encode = bundled_target.tokenizer.encode
    prompts = [
        BenchPrompt(name, "short", tuple(encode(text)))
        for name, text in (("one", "def add("), ("two", "class Point:"))
    ]
    options = BenchOptions(max_tokens=12, repeats=1, profile_prompts=1, width_repeats=1)
    tokenizer = bundled_target.tokenizer
    bench = Bench(bundled_target.target, lambda: tokenizer.detokenizer, arms, prompts, options)
    for _ in bench.run():
        pass
    return make_report(bench)


def shown_on_terminal(report: BenchReport, width: int) -> str:
    stream = io.StringIO()
    console = Console(
        file=stream, width=width, force_terminal=True, color_system=None, markup=False, emoji=False
    )
    bench_render.print_report(CONTEXT, report, find_best(report), console)
    return re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())


@pytest.mark.parametrize("width", [24, 40, 60, 80, 140])
def test_no_number_is_ever_cut(width: int, report: BenchReport) -> None:
    """Whatever the terminal's width, every cell of every table stands there whole."""
    text = shown_on_terminal(report, width)
    assert "…" not in text
    lines = text.splitlines()
    for table in make_tables(report):
        numbers = [index for index in range(len(table.columns)) if index not in table.words]
        for row in table.rows:
            for index in numbers:
                cell = row[index].strip()
                assert any(cell in line for line in lines), cell
    if width >= 80:
        assert max(map(len, lines)) <= width


def test_without_a_terminal_lines_are_as_long_as_they_must_be(
    report: BenchReport, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    bench_render.print_report(CONTEXT, report, find_best(report))
    wide = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    for table in make_tables(report):
        assert wide.count(table.title) == 1, "no table is continued"
        for row in table.rows:
            whole = " +".join(re.escape(cell.strip()) for cell in row if cell)
            assert any(re.search(whole, line) for line in wide), row


@pytest.mark.parametrize("width", [80, 140])
def test_tables_fit_the_terminal_and_cut_nothing(width: int, report: BenchReport) -> None:
    text = shown_on_terminal(report, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text and "\x1b" not in text
    for words in (
        "Against A none", "Speed", "Rounds", "Accept profile", "Prompts", "Phases", "Verify pass",
        "A none", "B dflash2 block 2", "C dflash2 block 5", "D mtp k=3", "all", "too few pairs",
        "arms differ in", "commit 0123456789ab+changes", "Best on this device",
    ):  # fmt: skip
        assert words in text, words
    flat = " ".join(text.split())
    assert (
        "Too few pairs for a verdict against A none (8 needed): B dflash2 block 2, "
        "C dflash2 block 5, D mtp k=3." in flat
    )
    assert "arms differ in: route, drafter, block size" in flat
    assert "the same where it applies: target weight bytes" in flat
    assert "drafter bits 4, gate off" in flat
    arm = flat.partition("arm D mtp k=3: ")[2].partition("arms differ in")[0]
    for words in ("drafter the target's own head", "draft tokens 3", "drafter weight bytes"):
        assert words in arm, arm


def test_what_is_flagged_is_said(report: BenchReport, capsys: pytest.CaptureFixture[str]) -> None:
    """A loop, a loser, a speed-up beside other ids, an interrupted run."""
    first = report.comparisons[0]
    ratio = compare_pairs([[1.3] * 8])
    difference = Difference(1, 4, 10, 11, 0.0312)
    arm = report.arms[1]
    odd = replace(arm, identity=replace(arm.identity, differences=(difference,)))
    spoilt = replace(
        report,
        arms=(report.arms[0], odd, *report.arms[2:]),
        comparisons=(replace(first, end_to_end=ratio, ids_differ=True), *report.comparisons[1:]),
        degenerate=(0,),
        partial=True,
    )
    bench_render.print_report(CONTEXT, spoilt, None)
    flat = " ".join(capsys.readouterr().out.split())
    for words in (
        "PARTIAL", "one (loop)", "1 of 2 plain answers or prompts repeat themselves", "faster, BUT",
        "1 of 2", "Faster than A none (99 %): B dflash2 block 2.",
        "B dflash2 block 2 is faster with OTHER greedy ids",
        "two leaves the plain ids at token 4, where the plain one leads by 0.031 nats",
    ):  # fmt: skip
        assert words in flat, words


def test_equal_routes_are_a_against_a(bundled_target: LoadedTarget) -> None:
    loader = ArmLoader(bundled_target.target.config, LoadOptions())
    first, second = (
        loader.build(spec, loader.candidates(spec), bundled_target.target)
        for spec in ab_specs("dflash")
    )
    assert first.drafter is second.drafter is not None
    assert first.name == second.name == "dflash2" and first.options == second.options
    gated = parse_arm("auto:gate=on")
    with_gate = loader.build(gated, loader.candidates(gated), bundled_target.target)
    assert with_gate.options.gate and with_gate.reserve is not None
    assert with_gate.settings["reserve"] == "mtp" and first.reserve is None
    whole, packed = (
        loader.build(spec, loader.candidates(spec), bundled_target.target)
        for spec in (parse_arm("dflash:drafter-bits=16"), parse_arm("dflash:drafter-bits=8"))
    )
    assert (whole.settings["drafter_bits"], packed.settings["drafter_bits"]) == (16, 8)
    assert whole.drafter is not packed.drafter and packed.name == "dflash2 8 bits"


def test_a_sweep_is_one_arm_a_value_beside_plain(report: BenchReport) -> None:
    specs = parse_sweep("block-size=2..8")
    assert [spec.block_size for spec in specs] == [None, *range(2, 9)]
    assert specs[0].speculation == "none"
    assert [spec.draft_tokens for spec in parse_sweep("draft-tokens=1,4")] == [None, 1, 4]
    best = find_best(report)
    assert best is not None and {best.arm, *best.as_good} == {0, 1, 2, 3}  # too few pairs
    assert [len(arm.profile.trials) if arm.profile else 0 for arm in report.arms] == [0, 1, 4, 3]


def test_draft_tokens_above_the_exact_width_are_no_arm(bundled_target: LoadedTarget) -> None:
    """Cut to the width they would be the same arm again."""
    loader = ArmLoader(bundled_target.target.config, LoadOptions())

    def depth(text: str, width: int) -> Any:
        target = ExactTarget(bundled_target.target, ExactPlan(width, pads=True))
        spec = parse_arm(text)
        return loader.build(spec, loader.candidates(spec), target).settings["draft_tokens"]

    assert [depth("mtp:draft-tokens=3", 4), depth("mtp", 4), depth("mtp", 2)] == [3, 3, 1]
    for tokens in (4, 6):
        with pytest.raises(OptionError, match=rf"{tokens} is above .* give at most 3,"):
            depth(f"mtp:draft-tokens={tokens}", 4)
    with pytest.raises(OptionError, match="draft-tokens 6 is above"):  # of a head in reserve too
        depth("auto:draft-tokens=6,gate=on", 4)


def test_csv_has_a_row_an_answer(report: BenchReport, capsys: pytest.CaptureFixture[str]) -> None:
    bench_export.print_csv(report)
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert sorted(row["arm"] for row in rows) == list("AABBCCDD")
    deep = next(row for row in rows if row["arm"] == "C")
    assert len(deep["accepts"].split()) == 4 and float(deep["total_sec"]) > 0
    assert len({row["token_sha256"] for row in rows if row["prompt"] == "one"}) == 1


def test_markdown_tables_are_square(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("def add(a, b):\n\nfor line in\n")
    text = finished("--ab", "none", *QUICK, "--markdown", "--prompts", str(file))
    widths: dict[str, set[int]] = {}
    title = ""
    for line in text.splitlines():
        title = line if line.startswith("**") else title
        if line.startswith("|"):
            widths.setdefault(title, set()).add(line.count("|"))
    assert len(widths) == 7 and all(len(counts) == 1 for counts in widths.values())
    assert "| line-3 |" in text and "2 file" in text


def test_every_prompt_of_a_file_is_used(bundled_target: LoadedTarget, tmp_path: Path) -> None:
    """Raw, chat turn, conversation and ids side by side; sets are taken by turns."""
    tokenizer = bundled_target.tokenizer
    file = tmp_path / "p.jsonl"
    records: list[dict[str, Any]] = [{"text": f"x = {index}"} for index in range(15)]
    turn = [{"role": "user", "content": "hello"}]
    records += [{"user": "hello"}, {"messages": turn}, {"prompt_ids": [5, 6], "name": "own"}]
    file.write_text("\n".join(json.dumps(record) for record in records))
    found = collect_prompts(tokenizer, 4096, file=file)
    assert len(found) == 18 and found[-1].ids == (5, 6) and found[-1].name == "own"
    assert found[15].ids == found[16].ids and len(found[15].ids) > 3
    assert found[0].ids == tuple(tokenizer.encode("x = 0"))
    spread = collect_prompts(tokenizer, 4096, sets=["chat", "edit"], most=3)
    assert [prompt.kind for prompt in spread] == ["chat", "edit", "chat"]
    everything = collect_prompts(tokenizer, 4096)
    assert kinds_of(everything) == {"chat": 4, "code": 4, "prose": 4, "edit": 4}
    assert len({prompt.sha256 for prompt in everything}) == 16


def test_plot_without_matplotlib_fails_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run("--plot", str(tmp_path / "a.svg"), "--model", str(tmp_path / "absent"))
    assert result.exit_code == 1 and "pip install matplotlib" in result.stderr
    assert not (tmp_path / "a.svg").exists()


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_plot_writes_a_picture(tmp_path: Path, suffix: str, report: BenchReport) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / f"profile.{suffix}"
    bench_plot.check_plot(file)
    bench_plot.draw_profiles(report, file)
    head = file.read_bytes()[:400]
    assert (b"<svg" in head or b"<?xml" in head) if suffix == "svg" else head[1:4] == b"PNG"


def test_plot_styles_differ() -> None:
    assert len(set(bench_plot.STYLES)) == len(bench_plot.STYLES) >= 7


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--ab", "fast"], "invalid 'speculation' value 'fast'"),
        (["--ab", "mtp", "--arm", "none"], "not several"),
        (["--arm", "mtp:block-size=4"], "arm mtp has no option block-size"),
        (["--arm", "none:gate=on"], "arm none has no option gate; it takes none"),
        (["--arm", "dflash:depth=4"], "'depth=4' is not an option"),
        (["--arm", "dflash:block-size=many"], "is not a whole number"),
        (["--arm", "dflash:block-size=99"], "--block-size 99 is above"),
        (["--arm", "dflash:drafter-bits=5"], "--drafter-bits must be 4, 8 or 16"),
        (["--drafter-bits", "5"], "--drafter-bits must be 4, 8 or 16"),
        (["--arm", "mtp:draft-tokens=7"], "--draft-tokens is 7"),
        (["--sweep", "depth=1..2"], "give block-size=2..8"),
        (["--sweep", "block-size=5..2"], "the range is empty"),
        (["--sweep", "block-size=a"], "neither A..B nor a list"),
        (["--prompt-set", "poems"], "prompt set 'poems' is unknown"),
        (["--prompts", "p.txt", "--prompt-set", "chat"], "not both"),
        (["--json", "--csv"], "both write to stdout"),
        (["--plot", "profile.pdf"], "ends in .svg or .png"),
        (["--plot", "no/such/folder/a.svg"], "no folder"),
        (["--repeats", "0"], "repeats"),
    ],
)
def test_usage_errors_exit_2(args: list[str], message: str) -> None:
    result = run(*args)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.txt", b" \n", "no prompt in it"),
        ("p.txt", b"caf\xe9", "not UTF-8"),
        ("p.jsonl", b'{"text": "a"}\n{"text": }\n', "line 2 is not JSON"),
        ("p.jsonl", b'{"words": "a"}\n', "line 1: expected an object with one of"),
        ("p.jsonl", b'{"text": 3}\n', "'text' is not a text"),
        ("p.jsonl", b'{"messages": [{"role": "user"}]}\n', "'messages' is not a list"),
        ("p.jsonl", b'{"prompt_ids": [1, true]}\n', "'prompt_ids' is not a list"),
        ("p.jsonl", b'{"prompt_ids": [1, 99999], "name": "far"}\n', "prompt far: prompt id 99999"),
    ],
)
def test_bad_prompt_files_exit_1(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    result = run("--ab", "none", "--prompts", str(file))
    assert result.exit_code == 1 and message in result.stderr and "Traceback" not in result.output


def test_a_prompt_file_that_is_absent_exits_1(tmp_path: Path) -> None:
    assert run("--prompts", str(tmp_path / "absent.txt")).exit_code == 1


def test_an_explicit_arm_that_cannot_run_fails(tmp_path: Path) -> None:
    result = run("--arm", f"dflash:drafter={tmp_path}", "--arm", "none", *QUICK)
    assert result.exit_code == 1 and str(tmp_path) in result.stderr


def test_ctrl_c_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real SIGINT in the middle of the fourth answer: a document marked partial, exit 130."""
    decode, answers = Bench._decode, []

    def interrupted(self: Bench, *args: Any) -> Any:
        if len(self.samples) == 3:
            signal.raise_signal(signal.SIGINT)
        answers.append(decode(self, *args))
        return answers[-1]

    monkeypatch.setattr(Bench, "_decode", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs
    try:
        result = run("--ab", "none", *QUICK, "--json")
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.exit_code == 130 and "Traceback" not in result.output
    found = json.loads(result.stdout)
    assert found["partial"] is True
    assert [len(arm["samples"]) for arm in found["arms"]] == [1, 2]
    assert [prompt["measured"] for prompt in found["prompts"]] == [True, False]
    assert found["comparisons"][0]["end_to_end"]["count"] == 1
