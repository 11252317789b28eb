"""The limit of resident memory: raised around loading and each request, and put back once."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dflash_suite.core import wired_limit as module_under_test
from dflash_suite.core.decode import loop
from dflash_suite.core.decode.loop import Generation
from dflash_suite.core.loading import load
from dflash_suite.core.options import GenerateOptions, LoadOptions
from dflash_suite.core.stats import Chunk
from dflash_suite.core.target import forward_check
from dflash_suite.core.target.target import Target
from dflash_suite.core.wired_limit import MetalMemory, WiredLimit
from dflash_suite.drafters import pair
from tests.kit.tiny import PieceDetokenizer, make_target, prompt, save_checkpoint

FOUND, RECOMMENDED = 123, 1000


@dataclass
class Stub:
    """A Mac: keeps its limit, and the order of what it was asked to do."""

    recommended: int | None = RECOMMENDED
    limit: int = FOUND
    calls: list[str] = field(default_factory=list)

    def recommended_bytes(self) -> int | None:
        return self.recommended

    def set_limit(self, limit_bytes: int) -> int:
        before, self.limit = self.limit, limit_bytes
        self.calls.append(f"set {limit_bytes}")
        return before

    def synchronize(self) -> None:
        self.calls.append("synchronize")


ONCE = [f"set {RECOMMENDED}", "synchronize", f"set {FOUND}"]


def generation() -> Generation:
    options = GenerateOptions(max_tokens=6, gate=False)
    return Generation(make_target(), prompt(5), PieceDetokenizer(), options=options)


@pytest.mark.quick
def test_it_is_raised_and_put_back_after_the_work_has_ended() -> None:
    stub = Stub()
    with WiredLimit(stub).raised():
        assert stub.limit == RECOMMENDED
    assert stub.calls == ONCE


@pytest.mark.quick
def test_nested_uses_change_it_once() -> None:
    stub = Stub()
    limit = WiredLimit(stub)
    with limit.raised():
        with limit.raised():
            assert stub.limit == RECOMMENDED
        assert stub.limit == RECOMMENDED, "the outer one still needs it"
    with limit.raised():
        assert stub.limit == RECOMMENDED
    assert stub.calls == ONCE * 2


@pytest.mark.quick
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (1, 0, 2)])
def test_overlapping_uses_end_in_any_order(order: tuple[int, ...]) -> None:
    stub = Stub()
    limit = WiredLimit(stub)
    held = [ExitStack() for _ in order]
    for stack in held:
        stack.enter_context(limit.raised())
    for index in order:
        assert stub.limit == RECOMMENDED
        held[index].close()
    assert stub.calls == ONCE


@pytest.mark.quick
def test_an_error_puts_it_back() -> None:
    stub = Stub()
    with pytest.raises(ZeroDivisionError), WiredLimit(stub).raised():
        raise ZeroDivisionError
    assert stub.calls == ONCE


@pytest.mark.quick
def test_a_device_without_a_recommendation_is_left_alone() -> None:
    stub = Stub(recommended=None)
    limit = WiredLimit(stub)
    with limit.raised():
        pass
    assert stub.calls == [] and limit.note(10**15) is None


@pytest.mark.quick
def test_only_a_model_that_nearly_fills_it_is_noted() -> None:
    limit = WiredLimit(Stub(recommended=100 * 10**9))
    assert limit.note(90 * 10**9) is None
    said = limit.note(91 * 10**9)
    assert said is not None and "91.0 GB of the 100.0 GB" in said
    assert "iogpu.wired_limit_mb" in said


def test_requests_hold_it_until_the_last_of_them_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two generations alive at once; one ends, one is left in the middle."""
    stub = Stub()
    limit = WiredLimit(stub)
    monkeypatch.setattr(loop, "wired_limit", lambda: limit)
    first, second = iter(generation()), iter(generation())
    assert stub.calls == [], "nothing is held before the first event"
    next(first)
    assert isinstance([next(second) for _ in range(5)][-1], Chunk)
    assert sum(1 for _ in first) > 5 and stub.limit == RECOMMENDED
    second.close()
    assert stub.calls == ONCE


def test_an_error_in_a_request_puts_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = Stub()
    limit = WiredLimit(stub)
    monkeypatch.setattr(loop, "wired_limit", lambda: limit)
    broken = generation()
    monkeypatch.setattr(broken, "verify", None)
    with pytest.raises(TypeError):
        list(broken)
    assert stub.calls == ONCE


def test_loading_holds_it_and_notes_what_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = Stub()
    limit = WiredLimit(stub)
    seen: list[int] = []
    check = forward_check.check_forward
    for module in (load, module_under_test):
        monkeypatch.setattr(module, "wired_limit", lambda: limit)

    def watched(target: Target) -> None:
        seen.append(stub.limit)
        check(target)

    monkeypatch.setattr(load, "check_forward", watched)
    model = str(save_checkpoint(tmp_path / "target"))
    found = pair.load_pair(LoadOptions(model=model, speculation="none", exact=False))
    assert seen == [RECOMMENDED] and stub.calls == ONCE
    assert any("may be paged out" in note for note in found.notes)


def test_mlx_is_asked_on_metal_alone() -> None:
    """Here there is none; on a Mac the recommendation is the device's own."""
    memory = MetalMemory()
    assert memory.recommended_bytes() is None
    assert memory.set_limit(0) == memory.set_limit(0)
    memory.synchronize()
