"""Ids are those of tokenizer.json as the tokenizers library reads it; text is what it decodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from dflash_suite.core.checkpoint.target_config import TargetConfig
from dflash_suite.core.checkpoint.tokenizer_files import find_template
from dflash_suite.core.decode.chat import Chat, encode_text, render_chat
from dflash_suite.core.decode.detokenize import StreamingText
from dflash_suite.core.decode.emit import Emitter, prime
from dflash_suite.core.errors import CheckpointError
from dflash_suite.core.loading.tokenizer import PROBES, open_tokenizer
from tests.kit.tiny import save_byte_tokenizer, target_config

CODE = "x def f(a):\n    if a:\n        return  1\n\n    # e\u0301 日本 👍🏽\n"
TEXTS = (*PROBES, CODE, "", " ", "\n")
CLASSES = ("PreTrainedTokenizerFast", "LlamaTokenizerFast", "LlamaTokenizer", "Qwen2Tokenizer",
           "Qwen2TokenizerFast", "GPT2Tokenizer", "GemmaTokenizer", None)  # fmt: skip


def save_settings(directory: Path, **settings: Any) -> None:
    kept = {key: value for key, value in settings.items() if value is not None}
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>", **kept}))


def save_bytes(directory: Path, *, split: str | None, compose: bool) -> Tokenizer:
    """A byte-level tokenizer with a merge across digits and spaces, so that the split shows."""
    save_byte_tokenizer(directory)
    raw = json.loads((directory / "tokenizer.json").read_text())
    space = chr(256 + 32)
    merges = [("1", "2"), ("12", "3"), (space, space), ("e", "f"), ("d", "ef")]
    for index, (one, other) in enumerate(merges, start=259):
        raw["model"]["vocab"][one + other] = index
    raw["model"]["merges"] = [list(pair) for pair in merges]
    (directory / "tokenizer.json").write_text(json.dumps(raw))
    made: Tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    if split is not None:
        bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        steps = [pre_tokenizers.Split(Regex(split), "isolated"), bytes_alone]
        made.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if compose:
        made.normalizer = normalizers.NFC()
    made.save(str(directory / "tokenizer.json"))
    return made


def config_of(directory: Path) -> TargetConfig:
    return target_config(path=directory)


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("compose", [True, False], ids=["NFC", "as it is"])
@pytest.mark.parametrize("split", [None, r"\d{1,3}|\s+|\w+|.", r"\d|[^\d]+"])
def test_ids_are_those_of_tokenizer_json(
    tmp_path: Path, name: str | None, compose: bool, split: str | None
) -> None:
    made = save_bytes(tmp_path, split=split, compose=compose)
    save_settings(tmp_path, tokenizer_class=name)
    opened = open_tokenizer(config_of(tmp_path))
    for text in TEXTS:
        assert encode_text(opened.wrapper, text) == made.encode(text).ids
    for note in opened.notes:
        assert transformers.__version__ in note and "tokenizer.json" in note
    assert opened.wrapper.eos_token_id == 0 and 0 in opened.wrapper.eos_token_ids


def test_a_class_that_splits_otherwise_is_noted(tmp_path: Path) -> None:
    save_bytes(tmp_path, split=r"\d|[^\d]+", compose=False)
    save_settings(tmp_path, tokenizer_class="Qwen2Tokenizer")
    (note,) = open_tokenizer(config_of(tmp_path)).notes
    assert "makes a Qwen2Tokenizer" in note


def test_a_prefix_space_that_is_ordered_is_kept(tmp_path: Path) -> None:
    save_bytes(tmp_path, split=None, compose=False)
    save_settings(tmp_path, tokenizer_class="GPT2Tokenizer", add_prefix_space=True)
    opened = open_tokenizer(config_of(tmp_path))
    assert not opened.notes
    assert opened.wrapper.decode(encode_text(opened.wrapper, "word")) == " word"


def test_a_tokenizer_json_that_cannot_be_read(tmp_path: Path) -> None:
    save_settings(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(CheckpointError, match="tokenizer could not be loaded"):
        open_tokenizer(config_of(tmp_path))


# Templates


TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
PLACES = ("chat_template.jinja", "tokenizer_config.json", "chat_template.json",
          "processor_config.json")  # fmt: skip


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("place", PLACES)
def test_a_template_is_found_wherever_it_is(tmp_path: Path, place: str, mark: str) -> None:
    save_byte_tokenizer(tmp_path)
    text = mark + TEMPLATE
    if place.endswith(".jinja"):
        (tmp_path / place).write_text(text, encoding="utf-8")
    else:
        (tmp_path / place).write_text(json.dumps({"chat_template": text, "eos_token": "<eos>"}))
    found = find_template(tmp_path)
    assert found is not None and (found.text, found.file.name) == (TEMPLATE, place)
    opened = open_tokenizer(config_of(tmp_path))
    ids = render_chat(opened.wrapper, Chat([{"role": "user", "content": "hi"}]))
    assert opened.wrapper.decode(ids) == "[user]hi"
    assert bool(opened.notes) == (place in PLACES[2:])


def test_the_nearer_place_of_a_template_wins(tmp_path: Path) -> None:
    save_byte_tokenizer(tmp_path)
    for place in PLACES[1:]:
        text = json.dumps({"chat_template": TEMPLATE + place, "eos_token": "<eos>"})
        (tmp_path / place).write_text(text)
    found = find_template(tmp_path)
    assert found is not None and found.file.name == "tokenizer_config.json"
    assert open_tokenizer(config_of(tmp_path)).wrapper.chat_template == found.text


# Streamed text


def save_metaspace(directory: Path) -> Tokenizer:
    """Words as SentencePiece has them, decoded by Metaspace, with bytes for all else."""
    words = ["<eos>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["\u2581", *(chr(code) for code in range(33, 127)), "\n"]
    made = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, [],
                     byte_fallback=True))  # fmt: skip
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    made.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always")]
    )
    made.add_special_tokens([AddedToken("<eos>", special=True)])
    made.save(str(directory / "tokenizer.json"))
    save_settings(directory, tokenizer_class="PreTrainedTokenizerFast")
    return made


@pytest.mark.parametrize("prompt", ["x", "def f():\n", " "])
def test_streamed_text_is_the_tokenizers_own(tmp_path: Path, prompt: str) -> None:
    made = save_metaspace(tmp_path)
    wrapper = open_tokenizer(config_of(tmp_path)).wrapper
    before, ids = made.encode(prompt).ids, made.encode("    if x:\n        y = 'é日👍'\n  z").ids
    whole = made.decode([*made.encode("x").ids, *before, *ids], skip_special_tokens=False)
    detokenizer = wrapper.detokenizer
    assert isinstance(detokenizer, StreamingText)
    prime(detokenizer, before)
    emitter = Emitter(detokenizer, (), (), 1000)
    pieces = []
    for token in ids:
        emitter.take([token])
        pieces.append(emitter.drain())
    text = "".join(pieces) + emitter.flush()
    assert whole.endswith(text) and text == "    if x:\n        y = 'é日👍'\n  z"
    assert sum(map(bool, pieces)) > 20  # it streams


@pytest.mark.parametrize("prompt", ["x", "é", "日"])
def test_long_runs_of_bytes_are_whole_characters(tmp_path: Path, prompt: str) -> None:
    """Characters of several tokens in a row, from behind one whose first bytes are not shown."""
    made = save_metaspace(tmp_path)
    answer = " é日👍" * 3 + "日本語の文章👍🏽éé" * 4 + "\n  x"
    detokenizer = open_tokenizer(config_of(tmp_path)).wrapper.detokenizer
    prime(detokenizer, made.encode(prompt).ids)
    pieces = []
    for token in made.encode(answer).ids:
        detokenizer.add_token(token)
        pieces.append(detokenizer.last_segment)
    assert "".join(pieces) == answer
