"""Ids reach the host through the mailbox: the text of its kernel, run on a CPU."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from dflash_suite.core.cuda.backbone import FusedBackbone
from dflash_suite.core.cuda.ops import mailbox
from dflash_suite.core.cuda.ops.fused_ops import CudaKernels
from dflash_suite.core.cuda.ops.mailbox import LETTERS, WORDS, Mailbox
from dflash_suite.core.decode.loop import Generation
from dflash_suite.core.decode.setup import Setup
from dflash_suite.core.errors import DeviceError
from dflash_suite.core.options import GenerateOptions
from dflash_suite.core.target.backbones import HybridBackbone
from dflash_suite.core.target.target import Target
from tests.core.cuda.test_fused import traced_once
from tests.kit.cuda_on_cpu import COMPILER, CudaOnCpu, shared_words
from tests.kit.tiny import PieceDetokenizer, make_target

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++ to stand for nvcc")


def make_mailbox() -> Mailbox:
    return Mailbox(*shared_words(LETTERS * WORDS))


def test_vectors_arrive_as_they_were_sent(emulated: CudaOnCpu) -> None:
    box = make_mailbox()
    signed, unsigned = mx.array([3, -1, 7]), mx.array([9, 2**31 - 1], dtype=mx.uint32)
    one, both = box.post([unsigned]), box.post([signed, unsigned])
    assert both() == [[3, -1, 7], [9, 2**31 - 1]] and one() == [[9, 2**31 - 1]]
    assert box.post([mx.arange(WORDS - 1)])() == [[*range(WORDS - 1)]]


def test_letters_are_never_mistaken_for_older_ones(emulated: CudaOnCpu) -> None:
    box = make_mailbox()
    for number in range(3 * LETTERS):
        box.post([mx.array([-number])])  # never fetched
        assert box.post([mx.array([number, 1])])() == [[number, 1]]
    box._posted = mailbox.LAST - 2
    assert [box.post([mx.array([n])])() for n in range(4)] == [[[n]] for n in range(4)]


@pytest.mark.parametrize("others", [LETTERS - 1, LETTERS, 3 * LETTERS])
def test_a_letter_that_waits_long_is_still_the_same(emulated: CudaOnCpu, others: int) -> None:
    box = make_mailbox()
    first = box.post([mx.array([11, 12])])
    for number in range(others):
        box.post([mx.array([number, number])])
    assert first() == [[11, 12]]


def test_a_pass_that_hands_nothing_over_is_an_error_and_no_hang(
    emulated: CudaOnCpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = make_mailbox()
    monkeypatch.setattr(mailbox, "PATIENCE_SEC", 0.05)
    lost: Any = lambda **call: [mx.zeros((1,))]  # noqa: E731
    monkeypatch.setattr(mx.fast, "precompiled_cuda_kernel", lost)
    fetch = box.post([mx.array([1])])
    with pytest.raises(DeviceError, match="without handing its tokens over"):
        fetch()


SHORT = GenerateOptions(max_tokens=8)


def test_ids_are_started_and_are_there_before_their_number(
    emulated: CudaOnCpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(mailbox, "start_eval", started.append)
    make_mailbox().post([mx.array([1])])
    assert len(started) == 1
    copied, number = mailbox.POST.index("COPIES"), mailbox.POST.index("box[0] = ")
    order = [
        copied,
        mailbox.POST.index("__syncthreads"),
        mailbox.POST.index("__threadfence_system"),
    ]
    assert order == sorted(order) and order[-1] < number


def fused_target() -> Target:
    plain = make_target("hybrid", "bfloat16")
    return Target(FusedBackbone(plain.backbone.model, CudaKernels(), traced_once), plain.config)


def test_what_does_not_fit_is_read_as_before(
    emulated: CudaOnCpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = fused_target()
    for odd in (mx.arange(WORDS), mx.array([[1], [2]]), mx.array([1.5])):
        start = len(emulated.calls)
        assert target.start_reading([odd])() == [odd.tolist()]
        assert len(emulated.calls) == start

    def refused(count: int) -> Any:
        raise DeviceError("the CUDA driver failed with code 2")

    mailbox.mailbox.cache_clear()
    monkeypatch.setattr(mailbox, "shared_words", refused)
    with pytest.warns(RuntimeWarning, match="code 2; ids are read from the GPU more slowly"):
        assert target.start_reading([mx.array([4, 5])])() == [[4, 5]]
    mailbox.mailbox.cache_clear()


@pytest.mark.parametrize("pipelined", [False, True])
def test_the_loop_reads_its_tokens_there(
    emulated: CudaOnCpu, pipelined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = fused_target()
    posts = [name for name in emulated.calls if "post" in name]
    answer = Generation(
        target, [5, 9, 2], PieceDetokenizer(), options=SHORT, setup=Setup(pipelined=pipelined)
    )
    for _ in answer:
        pass
    posts = [name for name in emulated.calls if "post" in name][len(posts) :]
    ids = answer.emitter.token_ids
    assert len(posts) == answer.stats.target_passes + 1 and len(ids) == 8, "and the prefill's"
    monkeypatch.setattr(FusedBackbone, "start_reading", HybridBackbone.start_reading)
    again = Generation(
        target, [5, 9, 2], PieceDetokenizer(), options=SHORT, setup=Setup(pipelined=pipelined)
    )
    for _ in again:
        pass
    assert again.emitter.token_ids == ids and len({*ids}) > 3
