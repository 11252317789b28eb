"""Text for people: the footer and its parts. format_* return str, print_* write to stderr."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from ...core.stats import PHASES, GenerationStats
from ...drafters.routes import Route
from .terminal import styled, text_console

if TYPE_CHECKING:
    from ...drafters.request import Completion


def stderr_console() -> Console:
    """Where progress, footers and errors go; long paths are never broken at 80 columns."""
    return text_console(stderr=True, soft_wrap=True)


def print_error(message: str) -> None:
    """One error line on stderr."""
    console = stderr_console()
    console.print(Text.assemble(("error:", "red"), " ", styled(console, message)))


FEWEST_COLUMNS = 20
"""What is narrower is broken by the terminal, not here."""


def print_note(message: str) -> None:
    """One dim line on stderr, or several; on a terminal they break between words."""
    console = stderr_console()
    if console.is_terminal:
        message = "\n".join(wrapped(line, console.width) for line in message.splitlines())
    console.print(styled(console, message, "dim"))


def wrapped(line: str, columns: int) -> str:
    """A line broken between words; a path is never broken."""
    width = max(columns, FEWEST_COLUMNS)
    return textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)


def format_completion(done: Completion) -> str:
    """The footer of an answer that is over."""
    note = "" if done.identity is None else f"identity with plain decoding: {done.identity}"
    bits = f", {done.drafter_bits}-bit drafter" if done.drafter_bits else ""
    adapter = f", adapter {done.adapter_path}" if done.adapter_path else ""
    block = done.block.describe() + bits + adapter
    return format_footer(done.route, done.stats, block, note)


def format_footer(route: Route, stats: GenerationStats, block: str, device_note: str) -> str:
    """Route and why, then what it did: one line each."""
    lines = [f"route {route.route}: {route.reason}{block}"]
    parts = []
    if stats.tokens_per_round is not None:
        parts.append(f"{stats.tokens_per_round:.2f} tokens/round over {stats.rounds} rounds")
    if stats.accept_rate is not None:
        parts.append(f"{stats.accept_rate:.0%} of drafts accepted")
    if stats.plain_steps:
        parts.append(f"{stats.plain_steps} plain step{'s' * (stats.plain_steps != 1)}")
    if len(stats.rounds_by_route) > 1:
        counts = (f"{name} {count}" for name, count in stats.rounds_by_route.items())
        parts.append(f"rounds by route: {', '.join(counts)}")
    if stats.tokens_per_second is not None:
        parts.append(f"{stats.tokens_per_second:.1f} tok/s")
    if stats.ttft_sec is not None:
        parts.append(f"first token {stats.ttft_sec:.2f} s")
    parts.append(f"peak {stats.peak_memory_bytes / 1e9:.2f} GB")
    lines += [format_tokens(stats), ", ".join(parts)]
    if device_note:
        lines.append(device_note)
    return "\n".join(lines)


def format_tokens(stats: GenerationStats) -> str:
    """How long the prompt and the answer were, and how fast the prompt was fed."""
    reused = f" ({stats.reused_tokens} used again)" if stats.reused_tokens else ""
    prompt = f"prompt {stats.prompt_tokens} tokens{reused}"
    fed = stats.prompt_tokens - stats.reused_tokens
    if stats.ttft_sec and not stats.profiled:
        prompt += f" at {fed / stats.ttft_sec:.0f} tok/s"
    answer = stats.decoded_tokens + (stats.ttft_sec is not None)
    return f"{prompt}, answer {answer} token{'s' * (answer != 1)}"


def format_accept_profile(stats: GenerationStats) -> str:
    """Share of rounds whose draft at each position was kept (survival, not conditional)."""
    if not stats.rounds:
        return "accept by draft position: no speculative round was run"
    rates = [
        f"{kept / tried:.0%}"
        for kept, tried in zip(stats.accepts, stats.trials, strict=True)
        if tried
    ]
    return (
        f"accept by draft position: {' '.join(rates)}\n"
        f"drafted {stats.drafted}, accepted {stats.accepted}, emitted {stats.emitted}, "
        f"discarded by cuts {stats.discarded}, target passes {stats.target_passes}, "
        f"drafter resets {stats.drafter_resets}"
    )


def format_phases(stats: GenerationStats) -> str:
    """Phase times of a profiled pass, which waits for the device at every phase."""
    parts = [
        f"{name} {stats.phase_sec[name] * 1e3:.1f} ms" for name in PHASES if name in stats.phase_sec
    ]
    return "phases (synchronised, not a speed figure): " + ", ".join(parts)
