"""Conversations over one engine: a turn begins where the last ones lead, and answers as alone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash_suite.core.cache.bank import Bank
from dflash_suite.core.cache.kinds import cache_arrays
from dflash_suite.core.cache.resume import rows_bytes
from dflash_suite.core.decode.boundaries import stable_positions
from dflash_suite.core.decode.chat import Chat, render_chat
from dflash_suite.core.errors import OptionError, OutOfRoom
from dflash_suite.core.stats import Chunk
from dflash_suite.drafters.engine import Engine
from dflash_suite.drafters.request import Completion, Request
from dflash_suite.drafters.worker.worker import Worker, WorkerOptions
from tests.core.decode.test_messages import tokenizers
from tests.drafters.test_sessions import fresh, make_engine
from tests.kit.tiny import prompt

THINKING = (
    "{%- for m in messages %}{{- '<' + m.role[0] + '>' }}"
    "{%- if m.role == 'assistant' and '|' in m.content %}{{- m.content.split('|')[-1] }}"
    "{%- else %}{{- m.content }}{%- endif %}{{- ';' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<a>think:' }}{%- endif %}"
)
"""Drops the reasoning of earlier turns, as Qwen's templates do: what stands before a bar."""
KINDS = ("hybrid", "dense")
SYSTEM = {"role": "system", "content": "You are short."}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def answered(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def talking(directory: Path, kind: str) -> Engine:
    """A tiny target whose tokenizer has a byte a token, and the template above."""
    engine = make_engine(directory, kind)
    (directory / "words").mkdir()
    engine.tokenizer = tokenizers(directory / "words", THINKING)[0]
    return engine


def turn(messages: list[dict[str, str]], **changes: Any) -> Request:
    return Request(messages=messages, **{"max_tokens": 12, "gate": False, **changes})


def cold(engine: Engine, request: Request) -> Completion:
    return fresh(engine).complete(request)


def length(text: str) -> int:
    return len(text.encode())


def test_positions_are_those_that_later_prompts_share(tmp_path: Path) -> None:
    wrapper, _ = tokenizers(tmp_path, THINKING)
    chat = Chat([SYSTEM, user("one"), answered("why|two"), user("three")])
    ids = render_chat(wrapper, chat)
    system, first = "<s>You are short.;<u>", "one;"
    whole = system + first + "<a>two;<u>three;"
    expected = (length(system), length(system + first), length(whole), length(whole + "<a>"))
    assert stable_positions(wrapper, chat, ids) == expected
    assert len(ids) == length(whole + "<a>think:")


def test_a_template_that_refuses_such_turns_is_asked_for_the_others(tmp_path: Path) -> None:
    strict = THINKING.replace(
        "{%- for m in messages %}",
        "{%- if messages|length > 1 %}{{- raise_exception('one message') }}{%- endif %}"
        "{%- for m in messages %}",
        1,
    )
    wrapper, _ = tokenizers(tmp_path, strict)
    chat = Chat([user("one")])
    found = stable_positions(wrapper, chat, render_chat(wrapper, chat))
    assert found == (length("<u>"), length("<u>one;"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["dflash", "mtp", "none"])
def test_a_turn_begins_where_the_last_one_leads(kind: str, mode: Any, tmp_path: Path) -> None:
    """Up to the opening of the answer, which the next turn renders otherwise; the drafter's
    context is that of a cold run too, so its drafts are kept as often."""
    if mode == "mtp" and kind == "dense":
        pytest.skip("a dense target has no MTP head here")
    engine = talking(tmp_path, kind)
    messages, before = [SYSTEM, user("one")], 0
    for number in range(3):
        done = engine.complete(turn(messages, speculation=mode))
        alone = cold(engine, turn(messages, speculation=mode))
        assert done.token_ids == alone.token_ids
        assert done.stats.accepts == alone.stats.accepts
        assert done.stats.reused_tokens == before
        before = done.stats.prompt_tokens - length("think:")
        messages += [answered(f"long thoughts|{number}"), user(f"and {number}?")]
    assert engine.bank.counts.taken_over == 2


@pytest.mark.parametrize("kind", KINDS)
def test_two_conversations_share_a_system_prompt(kind: str, tmp_path: Path) -> None:
    """The second copies it, and neither disturbs the other from then on."""
    engine = talking(tmp_path, kind)
    engine.keep_prefixes()
    chats = [[SYSTEM, user("one")], [SYSTEM, user("another")]]
    shared = length("<s>You are short.;<u>")
    for _ in range(3):
        for messages in chats:
            done = engine.complete(turn(messages))
            assert done.token_ids == cold(engine, turn(messages)).token_ids
            first = len(messages) == 2
            if first and messages is chats[1]:
                assert done.stats.reused_tokens == shared
            if not first:
                assert done.stats.reused_tokens > shared
            messages += [answered("yes"), user("go on")]
    counts = engine.bank.counts
    assert (counts.missed, counts.copied, counts.taken_over) == (1, 1, 4)
    assert engine.bank.entries == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_beginning_is_copied_from_a_request_under_way(kind: str, tmp_path: Path) -> None:
    engine = talking(tmp_path, kind)
    engine.keep_prefixes()
    first, second = turn([SYSTEM, user("one")], max_tokens=30), turn([SYSTEM, user("other")])
    expected = [cold(engine, request).token_ids for request in (first, second)]
    answer = engine.start(first)
    events = iter(answer)
    while len(answer.generation.emitter.token_ids) < 6:
        next(events)
    done = engine.complete(second)
    assert done.stats.reused_tokens == length("<s>You are short.;<u>")
    assert list(events) and [answer.completion().token_ids, done.token_ids] == expected


def test_layers_that_slide_are_shared_on_the_grid(tmp_path: Path) -> None:
    """Their last bits follow the passes, so what is shared ends on the grid of every request."""
    engine = talking(tmp_path, "sliding")
    engine.keep_prefixes()
    system = {"role": "system", "content": "word " * 130}
    messages = [system, user("one")]
    reused = []
    for number in range(3):
        done = engine.complete(turn(messages, max_tokens=6))
        assert done.token_ids == cold(engine, turn(messages, max_tokens=6)).token_ids
        reused.append(done.stats.reused_tokens)
        messages += [answered(f"{number}"), user("and?")]
    other = engine.complete(turn([system, user("another")], max_tokens=6))
    assert [*reused, other.stats.reused_tokens] == [0, 512, 512, 512]


def test_a_cancelled_prompt_is_taken_up_again(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, "hybrid")
    engine.prefill_step_size = 16
    request = Request(prompt(100), max_tokens=4, speculation="none")
    events = iter(engine.start(request))
    for _ in range(4):
        next(events)
    events.close()
    done = engine.complete(request)
    assert done.stats.reused_tokens == 48
    assert done.token_ids == cold(engine, request).token_ids


def test_a_request_that_is_refused_takes_nothing(tmp_path: Path) -> None:
    engine = talking(tmp_path, "hybrid")
    engine.keep_prefixes()
    engine.complete(turn([SYSTEM, user("one")]))
    more = [SYSTEM, user("one"), answered("x"), user("two")]
    engine.admission.memory = Small(engine.admission.memory.used_bytes() + 1000)
    with pytest.raises(OutOfRoom, match="GB of memory are free; shorten"):
        engine.complete(turn(more))


class Small:
    """A device with so many bytes."""

    def __init__(self, total: int) -> None:
        self.total = total

    def total_bytes(self) -> int:
        return int(self.total / 0.9) + 1

    def used_bytes(self) -> int:
        return int(mx.get_active_memory())


def test_the_bank_gives_way_to_a_request(tmp_path: Path) -> None:
    engine = talking(tmp_path, "hybrid")
    engine.keep_prefixes()
    for number in range(8):
        engine.complete(turn([user(f"{number} " * 20)], max_tokens=2, speculation="none"))
    held = engine.bank.size_bytes
    request = turn([user("z" * 300)], max_tokens=60, speculation="none")
    assert engine.bank.entries == 8
    engine.admission.memory = Small(engine.admission.memory.used_bytes() + 150_000)
    done = engine.complete(request)
    assert done.token_ids == cold(engine, request).token_ids
    assert engine.bank.counts.evicted > 0 and engine.bank.entries < 9
    assert held > 0


def test_a_request_waits_for_those_under_way(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, "dense")
    request = Request(prompt(40), max_tokens=400, speculation="none")
    answer = engine.start(request, bounded=True)
    events = iter(answer)
    next(events)
    needed = engine.admission.sizes.cache_bytes(440)
    engine.admission.memory = Small(engine.admission.memory.used_bytes() + needed)
    with pytest.raises(OutOfRoom, match="beside the 1 requests under way") as found:
        engine.start(request, bounded=True)
    assert found.value.can_wait
    events.close()
    engine.bank.clear()
    assert len(engine.complete(request).token_ids) == 400


def test_a_job_waits_until_there_is_room(tmp_path: Path) -> None:
    def make() -> Engine:
        made = make_engine(tmp_path, "dense")
        needed = made.admission.sizes.cache_bytes(340)
        made.keep_prefixes(needed)
        made.admission.memory = Small(made.admission.memory.used_bytes() + int(1.5 * needed))
        return made

    with Worker(make, WorkerOptions(prefix_bytes=1000)) as worker:
        request = Request(prompt(40), max_tokens=300, speculation="none", reuse=False)
        jobs = [worker.submit(request) for _ in range(3)]
        done = [job.wait().token_ids for job in jobs]
        with pytest.raises(OutOfRoom):
            worker.submit(Request(prompt(40), max_tokens=900, speculation="none")).wait()
    assert done[0] == done[1] == done[2] and len(done[0]) == 300


@pytest.mark.parametrize("size", [0, -5, 1 << 60])
def test_a_bank_that_cannot_be_is_refused(size: int, tmp_path: Path) -> None:
    engine = make_engine(tmp_path, "dense")
    with pytest.raises(OptionError, match="a bank of prefixes"):
        engine.keep_prefixes(size)


def test_the_bank_keeps_to_its_bytes_and_the_latest(tmp_path: Path) -> None:
    """Over many conversations: least recently used out first, beginnings last."""
    engine = talking(tmp_path, "hybrid")
    engine.complete(turn([SYSTEM, user("0" * 40)]))
    one = engine.bank.size_bytes
    engine.bank = Bank(int(4.5 * one))
    chance = random.Random(5)
    for number in range(16):
        text = f"{number} " + "x" * chance.randrange(60)
        engine.complete(turn([SYSTEM, user(text)], max_tokens=3))
        assert 0 < engine.bank.size_bytes <= 4.5 * one
    assert engine.bank.counts.evicted > 5 and engine.bank.counts.missed == 1
    again = [SYSTEM, user("again")]
    done = engine.complete(turn(again))
    assert done.stats.reused_tokens == length("<s>You are short.;<u>")
    assert done.token_ids == cold(engine, turn(again)).token_ids


def test_an_entry_beyond_the_bound_keeps_its_beginning(tmp_path: Path) -> None:
    engine = talking(tmp_path, "dense")
    system = {"role": "system", "content": "s" * 300}
    engine.complete(turn([system, user("y" * 400)]))
    engine.bank = Bank(int(0.7 * engine.bank.size_bytes))
    engine.complete(turn([system, user("y" * 400)]))
    assert engine.bank.entries == 1
    other = engine.complete(turn([system, user("z")]))
    assert other.stats.reused_tokens == length("<s>" + "s" * 300 + ";<u>")
    assert other.token_ids == cold(engine, turn([system, user("z")])).token_ids


def test_memory_stays_flat_in_a_full_bank(tmp_path: Path) -> None:
    from tests.long.prefixes import many_turns

    assert many_turns(talking(tmp_path, "hybrid"), turns=40, warm_turns=24)


def test_bytes_are_counted_once(tmp_path: Path) -> None:
    engine = talking(tmp_path, "hybrid")
    answer = engine.start(turn([SYSTEM, user("one")]))
    assert sum(isinstance(event, Chunk) for event in answer) > 0
    rows = answer.generation.rows()
    arrays = {id(one): one for one in cache_arrays(rows.cache)}
    assert rows_bytes(rows) > sum(one.nbytes for one in arrays.values()) > 0
    assert rows_bytes(rows) == engine.bank.size_bytes
