"""Accept profiles as a picture: survival by draft position with 95 % intervals, a line an arm."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from ...core.bench.report import BenchReport
from ...core.errors import DflashError, OptionError
from ..text.bench_tables import arm_labels

SUFFIXES = (".svg", ".png")
STYLES = ("o-", "s--", "^-.", "D:", "v-", "P--", "X-.", "*:")
"""A marker and a dash each, so that lines can be told apart without colour."""


def check_plot(file: Path) -> None:
    """Before anything is measured: can this file be drawn at all?"""
    if file.suffix not in SUFFIXES:
        raise OptionError(f"--plot {file}: give a file that ends in .svg or .png")
    if not file.parent.is_dir():
        raise OptionError(f"--plot {file}: there is no folder {file.parent}")
    _matplotlib()


def draw_profiles(report: BenchReport, file: Path) -> None:
    """Write the picture; DflashError where the file cannot be written."""
    figure: Any = _matplotlib().Figure(figsize=(7, 4.3), layout="constrained")
    axes = figure.subplots()
    arms = [
        (name, arm.profile)
        for name, arm in zip(arm_labels(report), report.arms, strict=True)
        if arm.profile is not None and arm.profile.rounds
    ]
    longest = 1
    for index, (name, profile) in enumerate(arms):
        rates = [(place, rate) for place, rate in enumerate(profile.survival, 1) if rate]
        longest = max(longest, len(rates))
        # Side by side, so that intervals of several arms do not cover each other.
        places = [place + 0.06 * (index - (len(arms) - 1) / 2) for place, _ in rates]
        axes.errorbar(
            places,
            [rate.value for _, rate in rates],
            yerr=[
                [rate.value - rate.low for _, rate in rates],
                [rate.high - rate.value for _, rate in rates],
            ],
            fmt=STYLES[index % len(STYLES)],
            capsize=3,
            label=f"{name}: {profile.tokens_per_round:.2f} tokens/round, {profile.rounds} rounds",
        )
    axes.set(
        xlabel="draft position",
        ylabel="survival (share of rounds that kept it)",
        ylim=(0, 1),
        xticks=range(1, longest + 1),
        title=f"Accept profile, {len(report.headline)} prompts, 95 % Wilson intervals"
        + (" (partial run)" if report.partial else ""),
    )
    axes.grid(alpha=0.3)
    if arms:
        axes.legend()
    try:
        figure.savefig(file, dpi=150)
    except OSError as exc:
        raise DflashError(f"--plot {file} could not be written: {exc.strerror}") from exc


def _matplotlib() -> Any:
    try:
        return importlib.import_module("matplotlib.figure")
    except ImportError as exc:
        raise DflashError(
            f"--plot needs matplotlib ({exc}): pip install matplotlib, or leave --plot out"
        ) from exc
