"""From ids to text: cuts, stop strings, incomplete UTF-8; streamed text is the whole text."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, SPMStreamingDetokenizer
from mlx_lm.tokenizer_utils import load as untyped_load
from transformers import PreTrainedTokenizerFast

from dflash_suite.core.decode.detokenize import StreamingText
from dflash_suite.core.decode.emit import Emitter, prime
from dflash_suite.core.loading.load import LoadedTarget
from tests.kit.tiny import PieceDetokenizer, save_byte_tokenizer

pytestmark = pytest.mark.quick

PIECES = {1: "a", 2: "b", 3: "ST", 4: "OP", 5: "c", 6: "\n", 7: "S", 8: "xSTOPy", 9: ""}
EOS = 0
load_tokenizer: Any = untyped_load


def emitter(
    stop: Sequence[str] = (), max_tokens: int = 100, detokenizer: Any = None
) -> tuple[Emitter, Any]:
    text = detokenizer or PieceDetokenizer(PIECES)
    return Emitter(text, frozenset({EOS}), tuple(stop), max_tokens), text


def test_every_candidate_is_emitted_where_nothing_ends_it() -> None:
    out, _ = emitter()
    assert out.take([1, 2, 5]) == 3
    assert out.take([1]) == 1
    assert out.token_ids == [1, 2, 5, 1]
    assert out.drain() == "abca"
    assert out.drain() == ""
    assert out.reason is None
    assert out.remaining == 96


def test_eos_counts_as_emitted_and_adds_no_text() -> None:
    out, detokenizer = emitter()
    assert out.take([1, EOS, 2, 5]) == 2
    assert out.token_ids == [1, EOS]
    assert detokenizer.tokens == [1]
    assert (out.drain(), out.reason) == ("a", "stop")


def test_max_tokens_cuts_inside_a_block() -> None:
    out, detokenizer = emitter(max_tokens=3)
    assert out.take([1]) == 1
    assert out.take([2, 5, 1, 1]) == 2
    assert out.token_ids == [1, 2, 5]
    assert (out.drain(), out.reason, out.remaining) == ("abc", "length", 0)
    assert detokenizer.finalized == 1


def test_eos_as_the_last_allowed_token_is_a_stop() -> None:
    out, _ = emitter(max_tokens=2)
    assert out.take([1, EOS, 2]) == 2
    assert out.reason == "stop"


def test_stop_string_over_two_tokens_ends_in_the_middle_of_a_block() -> None:
    """The second of its tokens is followed by accepted ones."""
    out, _ = emitter(stop=["STOP"])
    assert out.take([1, 3, 4, 2, 5, 1]) == 3
    assert out.token_ids == [1, 3, 4]
    assert (out.drain(), out.reason) == ("a", "stop")


def test_stop_string_across_two_blocks_shows_nothing_of_itself() -> None:
    out, _ = emitter(stop=["STOP"])
    assert out.take([1, 3]) == 2
    assert (out.drain(), out.reason) == ("a", None), "ST could still become STOP"
    assert out.take([4, 1]) == 1
    assert (out.drain(), out.reason) == ("", "stop")


def test_what_only_looked_like_a_stop_string_comes_out_later() -> None:
    out, _ = emitter(stop=["STOP"])
    out.take([3])
    assert out.drain() == ""
    out.take([5])
    assert out.drain() == "STc"


def test_held_text_comes_out_at_the_end() -> None:
    for ending, limit in ((EOS, 100), (3, 2)):
        out, _ = emitter(stop=["STOP"], max_tokens=limit)
        out.take([3, ending])
        expected = "ST" if ending == EOS else "STST"
        assert out.drain() == expected and out.reason is not None


def test_stop_string_inside_one_token_cuts_its_text() -> None:
    out, _ = emitter(stop=["STOP"])
    assert out.take([1, 8, 2]) == 2
    assert out.drain() == "ax"
    assert out.token_ids == [1, 8]


def test_the_earliest_of_several_stop_strings_wins() -> None:
    out, _ = emitter(stop=["OPy", "xST", "nowhere"])
    out.take([1, 8])
    assert out.drain() == "a"


def test_overlapping_beginnings_of_a_stop_string() -> None:
    out, _ = emitter(stop=["aab"])
    assert out.take([1, 1, 1, 2, 5]) == 4
    assert out.drain() == "a"


def test_an_empty_piece_keeps_what_is_held() -> None:
    out, _ = emitter(stop=["STOP"])
    assert out.take([3, 9, 4]) == 3
    assert (out.drain(), out.reason) == ("", "stop")


def test_flush_lets_out_what_is_held_and_names_the_end() -> None:
    out, _ = emitter(stop=["STOP"])
    out.take([1, 3])
    out.drain()
    assert out.flush() == "ST"
    assert out.reason == "cancelled"
    assert out.flush() == ""


def test_flush_after_the_end_changes_nothing() -> None:
    out, detokenizer = emitter(stop=["STOP"])
    out.take([1, 3, 4])
    assert out.flush() == "a"
    assert (out.reason, detokenizer.finalized) == ("stop", 0)


def naive(text: str, stop: Sequence[str]) -> str:
    """Text up to the stop string that is complete first; of those, the one that begins first."""
    for end in range(1, len(text) + 1):
        begins = [end - len(s) for s in stop if text[:end].endswith(s)]
        if begins:
            return text[: min(begins)]
    return text


def test_random_stop_strings_against_a_naive_search() -> None:
    """Single characters a token, so that the first complete stop string is well defined."""
    rng = random.Random(7)
    cut = 0
    for _ in range(400):
        text = "".join(rng.choice("ab") for _ in range(rng.randint(1, 14)))
        stop = ["".join(rng.choice("ab") for _ in range(rng.randint(1, 4))) for _ in range(2)]
        out = Emitter(PieceDetokenizer({1: "a", 2: "b"}), frozenset(), tuple(stop), 14)
        shown = ""
        ids = [1 if char == "a" else 2 for char in text]
        while ids and out.reason is None:
            size = rng.randint(1, 4)
            out.take(ids[:size])
            shown += out.drain()
            ids = ids[size:]
        shown += out.flush()
        assert shown == naive(text, stop), (text, stop)
        cut += shown != text
    assert 50 < cut < 390, "both outcomes must occur"


UNICODE = [
    "The naïve café costs 5 € and 日本語は楽しい。",
    "한국어 · Ελληνικά · русский · العربية",
    "👩‍👩‍👧‍👦 🇩🇪🏳️‍🌈 e\u0301x ☕\ufe0f done",
    "def f(x):\n\treturn '☃' * x\r\n\n\n",
    "trailing spaces   and\u00a0no-break \u200b zero width",
]


def blocks_of(ids: list[int], rng: random.Random) -> list[list[int]]:
    blocks = []
    while ids:
        size = rng.randint(1, 7)
        blocks.append(ids[:size])
        ids = ids[size:]
    return blocks


@pytest.fixture(scope="module")
def byte_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tokenizer whose tokens are single bytes: every character beyond ASCII spans tokens."""
    directory = tmp_path_factory.mktemp("bytes")
    save_byte_tokenizer(directory)
    return load_tokenizer(directory)


@pytest.mark.parametrize("name", ["bundled", "bytes"])
@pytest.mark.parametrize("text", UNICODE)
def test_streamed_text_is_the_decoded_text(
    bundled_target: LoadedTarget, byte_tokenizer: Any, name: str, text: str
) -> None:
    """Combining marks, variation selectors and joiners are not repeated."""
    tokenizer = bundled_target.tokenizer if name == "bundled" else byte_tokenizer
    if name == "bundled":
        text = unicodedata.normalize("NFC", text)  # as this tokenizer does
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text, "the fixture must round-trip"
    for seed in range(8):
        rng = random.Random(seed)
        out, _ = emitter(detokenizer=tokenizer.detokenizer)
        shown = []
        for block in blocks_of(list(ids), rng):
            out.take(block)
            shown.append(out.drain())
            assert "\ufffd" not in shown[-1], "half a character was shown"
        shown.append(out.flush())
        assert "".join(shown) == text


def test_one_scalar_a_token_repeats_nothing() -> None:
    text = "e\u0301x 🇩🇪 👩\u200d👧 ☕\ufe0f"
    for size in (1, 2, 3, 5):
        out, _ = emitter(detokenizer=PieceDetokenizer(dict(enumerate(text, start=1))))
        ids = list(range(1, len(text) + 1))
        shown = []
        while ids:
            out.take(ids[:size])
            ids = ids[size:]
            shown.append(out.drain())
        assert "".join([*shown, out.flush()]) == text


def test_characters_really_span_tokens(bundled_target: LoadedTarget) -> None:
    """Otherwise the test above proves nothing."""
    tokenizer = bundled_target.tokenizer
    ids = tokenizer.encode("👩‍👩‍👧‍👦日", add_special_tokens=False)
    halves = [token for token in ids if "\ufffd" in tokenizer.decode([token])]
    assert len(halves) > 8


def test_one_character_held_back_until_it_is_whole(bundled_target: LoadedTarget) -> None:
    tokenizer = bundled_target.tokenizer
    ids = tokenizer.encode("x日y", add_special_tokens=False)
    assert len(ids) > 3
    out, _ = emitter(detokenizer=tokenizer.detokenizer)
    shown = []
    for token in ids:
        out.take([token])
        shown.append(out.drain())
    assert shown[0] == "x" and shown[-1] == "y"
    assert [piece for piece in shown[1:-1] if piece] == ["日"]


def test_stop_string_of_a_character_that_spans_tokens(bundled_target: LoadedTarget) -> None:
    tokenizer = bundled_target.tokenizer
    ids = tokenizer.encode("one 日本 two three", add_special_tokens=False)
    out, _ = emitter(stop=["本 t"], detokenizer=tokenizer.detokenizer)
    count = out.take(ids)
    assert count < len(ids)
    assert (out.drain(), out.reason) == ("one 日", "stop")


@pytest.mark.parametrize("ending", ["eos", "length"])
def test_an_answer_that_ends_in_half_a_character(bundled_target: LoadedTarget, ending: str) -> None:
    """What mlx-lm's detokenizer makes of it, at once or streamed: never lost, never an error."""
    tokenizer = bundled_target.tokenizer
    ids = tokenizer.encode("ab日", add_special_tokens=False)[:-1]
    whole = tokenizer.detokenizer
    for token in ids:
        whole.add_token(token)
    whole.finalize()
    limit = len(ids) if ending == "length" else 100
    out, _ = emitter(detokenizer=tokenizer.detokenizer, max_tokens=limit)
    out.take([*ids, EOS])
    assert out.drain() == whole.text
    assert "\ufffd" in whole.text
    assert out.reason == ("length" if ending == "length" else "stop")


PRIMED = [
    ("def f():\n", "    return 1"),
    ("one", " two"),
    ("one ", "two"),
    ("one ", " two"),
    (" ", " two"),
    ("日", " 本"),
    ("a\n\n", "\n b"),
]


@pytest.mark.parametrize("name", ["bundled", "bytes"])
@pytest.mark.parametrize(("before", "answer"), PRIMED)
def test_an_answer_keeps_its_first_space(
    bundled_target: LoadedTarget, byte_tokenizer: Any, name: str, before: str, answer: str
) -> None:
    """A detokenizer of mlx-lm drops it, as if the answer stood alone."""
    tokenizer = bundled_target.tokenizer if name == "bundled" else byte_tokenizer
    prompt_ids = tokenizer.encode("x" + before, add_special_tokens=False)
    ids = tokenizer.encode(answer, add_special_tokens=False)
    detokenizer = tokenizer.detokenizer
    prime(detokenizer, prompt_ids)
    out, _ = emitter(detokenizer=detokenizer)
    out.take(ids)
    assert out.drain() + out.flush() == tokenizer.decode(ids) == answer


@pytest.mark.parametrize("missing", [1, 2])
def test_a_prompt_that_ends_in_half_a_character(byte_tokenizer: Any, missing: int) -> None:
    """Nothing of the prompt's text leaks into the answer."""
    prompt_ids = byte_tokenizer.encode("a日", add_special_tokens=False)[:-missing]
    detokenizer = byte_tokenizer.detokenizer
    prime(detokenizer, prompt_ids)
    out, _ = emitter(detokenizer=detokenizer)
    out.take(byte_tokenizer.encode("bc", add_special_tokens=False))
    assert out.drain() == "bc"


def test_a_random_walk_streams_as_one_piece(bundled_target: LoadedTarget) -> None:
    """Random ids are mostly broken UTF-8: any split into blocks gives the same text."""
    tokenizer = bundled_target.tokenizer
    rng = random.Random(3)
    for _ in range(20):
        ids = [rng.randrange(5, 4096) for _ in range(40)]
        texts = set()
        for seed in range(4):
            out, _ = emitter(detokenizer=tokenizer.detokenizer, stop=["\n\n"])
            shown = ""
            for block in blocks_of(list(ids), random.Random(seed)):
                if out.reason is None:
                    out.take(block)
                    shown += out.drain()
            texts.add(shown + out.flush())
        assert len(texts) == 1


@pytest.mark.parametrize("name", ["bytes", "pieces", "decoded"])
def test_ids_that_the_tokenizer_does_not_have_leave_no_text(name: str, tmp_path: Path) -> None:
    """A padded vocabulary: an IndexError, or an exclamation mark, in mlx-lm's detokenizers."""
    save_byte_tokenizer(tmp_path)
    make: Any = PreTrainedTokenizerFast
    own = make(tokenizer_file=str(tmp_path / "tokenizer.json"))
    makers: dict[str, Any] = {
        "bytes": BPEStreamingDetokenizer,
        "pieces": SPMStreamingDetokenizer,
        "decoded": StreamingText,
    }
    detokenizer = makers[name](own)
    detokenizer.reset()
    ids = [*own.encode("one"), 300, 511, *own.encode("two"), 10**6]
    emitter = Emitter(detokenizer, {0}, (), 50)
    emitter.take(ids)
    assert emitter.token_ids == ids
    assert emitter.drain() + emitter.flush() == own.decode(ids) == "onetwo"
