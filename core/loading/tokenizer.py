"""A checkpoint's tokenizer: transformers' own, held against tokenizer.json, in mlx-lm's wrapper.

transformers rebuilds some tokenizers from their class and its own idea of how text is split, and
not from tokenizer.json (its issues 45488, 48206); the ids are others then, and nothing says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import NaiveStreamingDetokenizer, TokenizerWrapper
from mlx_lm.utils import load_tokenizer
from tokenizers import Tokenizer
from transformers import AutoConfig, PreTrainedTokenizerFast
from transformers import __version__ as transformers_version

from ..checkpoint.target_config import TargetConfig
from ..checkpoint.tokenizer_files import UNREAD_TEMPLATES, find_template, require_tokenizer
from ..decode.detokenize import StreamingText
from ..errors import CheckpointError, described
from ..json_values import is_whole, read_json

PROBES = (
    "x  two   three\tfour \n five\r\n\r\n    six\n",
    "x def f(a_b, c=12345.678):\n    return {'k': [a_b[0], 'it''s']}  # 100%\n",
    "x 日本語の文章。한국어 中文，标点！",
    "x e\u0301 cafe\u0301 ﬁ ½ Å Ω ệ \u00a0 \u200b",
    "x don't I'LL we'Ve 0123456789 3.14 1,000 HTTPServer camelCase 😀👍🏽",
)
"""Spaces, newlines, code, digits, other scripts, combining and compatibility characters."""
ORDERS = ("add_prefix_space", "legacy")
"""Settings of tokenizer_config.json that change how a text begins, whatever tokenizer.json says."""
FIRST_TOKENS = 2
SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")
KEPT = ("clean_up_tokenization_spaces", "add_bos_token", "add_eos_token", "model_max_length")


@dataclass(frozen=True)
class OpenedTokenizer:
    """mlx-lm's TokenizerWrapper, and a line for the user for each thing that was put right."""

    wrapper: Any
    notes: tuple[str, ...] = ()

    @property
    def template(self) -> str | None:
        """The chat template that prompts are rendered by; None where there is none."""
        stated = self.wrapper.chat_template
        stated = stated.get("default") if isinstance(stated, dict) else stated
        return stated if isinstance(stated, str) and stated else None

    def eos_ids(self, config: TargetConfig) -> frozenset[int]:
        """The ids at which decoding stops: those of config.json, generation_config.json and the
        tokenizer; of published chat models no single file lists them all."""
        return config.eos_ids.union(filter(is_whole, self.wrapper.eos_token_ids))


def open_tokenizer(config: TargetConfig) -> OpenedTokenizer:
    """The tokenizer of a target's directory; its ids are those of tokenizer.json, where there is
    one, and its streamed text is its own decoding.

    Raises ModelNotFound where there is no tokenizer, CheckpointError where it cannot be opened.
    """
    directory = config.path
    require_tokenizer(directory)
    settings = _settings(directory)
    reference = _reference(directory)
    wrapper, problem = _load(config, required=reference is None)
    notes: list[str] = []
    own = wrapper._tokenizer if wrapper is not None else None
    if reference is not None and (own is None or not encode_alike(own, reference, settings)):
        made = problem or f"makes a {type(own).__name__} whose ids are not those of tokenizer.json"
        notes.append(
            f"{directory}: transformers {transformers_version} {made}; tokenizer.json is used"
        )
        own = _as_in_file(own, reference, settings)
    _give_template(own, directory, notes)
    return OpenedTokenizer(_wrap(own, wrapper, sorted(config.eos_ids)), tuple(notes))


def _load(config: TargetConfig, required: bool) -> tuple[Any, str | None]:
    """(mlx-lm's wrapper, why there is none); CheckpointError where there is no other way."""
    load: Any = load_tokenizer
    try:
        return load(config.path, eos_token_ids=sorted(config.eos_ids)), None
    except Exception as exc:  # a bad file makes transformers raise of every kind
        reason = described(exc)
        if required or not _reads_config(config.path):
            raise CheckpointError(
                f"{config.path}: the tokenizer could not be loaded ({reason}); fetch them again"
            ) from exc
        return None, f"cannot make the tokenizer that tokenizer_config.json names ({reason})"


def _reads_config(directory: Path) -> bool:
    """Whether transformers can make anything of config.json: no tokenizer.json helps where not."""
    try:
        AutoConfig.from_pretrained(directory)
    except Exception:  # its own validators raise of every kind
        return False
    return True


def _wrap(own: Any, wrapper: Any, eos_ids: list[int]) -> Any:
    """mlx-lm's wrapper of `own`, whose text is streamed by mlx-lm where that is exact."""
    stock = wrapper._detokenizer if wrapper is not None else None
    is_naive = stock is None or isinstance(stock, NaiveStreamingDetokenizer)
    if wrapper is not None and own is wrapper._tokenizer and not is_naive:
        wrapper.has_chat_template = wrapper.has_chat_template or own.chat_template is not None
        return wrapper
    make: Any = TokenizerWrapper
    renderer = wrapper._chat_template if wrapper is not None else None
    detokenizer = StreamingText if is_naive else lambda _: stock
    return make(own, detokenizer, eos_token_ids=eos_ids, chat_template=renderer)


def encode_alike(own: Any, reference: Tokenizer, settings: dict[str, Any]) -> bool:
    """Whether transformers' tokenizer gives the ids of tokenizer.json for all PROBES, special
    tokens apart, and apart from how a text begins where tokenizer_config.json orders that."""
    ordered = any(settings.get(name) is not None for name in ORDERS)
    leading = range(FIRST_TOKENS + 1) if ordered else range(1)
    for text in PROBES:
        try:
            ids = own.encode(text, add_special_tokens=False)
        except Exception:  # tokenizers raises no narrower one, for a token that it lacks
            return False
        wanted = reference.encode(text, add_special_tokens=False).ids
        if not any(ids[one:] == wanted[other:] for one in leading for other in leading):
            return False
    return True


def _settings(directory: Path) -> dict[str, Any]:
    file = directory / "tokenizer_config.json"
    return read_json(file) if file.is_file() else {}


def _reference(directory: Path) -> Tokenizer | None:
    """tokenizer.json as the tokenizers library reads it; None where there is none."""
    file = directory / "tokenizer.json"
    if not file.is_file():
        return None
    try:
        reference: Tokenizer = Tokenizer.from_file(str(file))
    except Exception as exc:  # tokenizers raises no narrower one
        raise CheckpointError(
            f"{file}: the tokenizer could not be loaded ({exc}); fetch it again"
        ) from exc
    reference.no_truncation()
    reference.no_padding()
    return reference


def _as_in_file(own: Any, reference: Tokenizer, settings: dict[str, Any]) -> Any:
    """tokenizer.json in transformers' plain class, with what `own`, or else
    tokenizer_config.json, knows beside it."""
    kept = {key: settings[key] for key in KEPT if settings.get(key) is not None}
    stated = {key: settings.get(key) for key in SPECIAL}
    if own is not None:
        stated = own.special_tokens_map
        for index, token in sorted(own.added_tokens_decoder.items()):
            is_next = index == reference.get_vocab_size()
            if is_next and reference.token_to_id(token.content) is None:
                reference.add_tokens([token])
    named = {key: one.get("content") if isinstance(one, dict) else one
             for key, one in stated.items()}  # fmt: skip
    special = {key: one for key, one in named.items() if isinstance(one, str)}
    make: Any = PreTrainedTokenizerFast
    template = None if own is None else own.chat_template
    return make(tokenizer_object=reference, chat_template=template, **kept, **special)


def _give_template(own: Any, directory: Path, notes: list[str]) -> None:
    """The template of a file that transformers does not read, and none with a byte order mark."""
    found = find_template(directory)
    if own.chat_template is None and found is not None:
        own.chat_template = found.text
        if found.file.name in UNREAD_TEMPLATES:
            notes.append(f"{found.file} has the chat template, where transformers does not look")
    if isinstance(own.chat_template, str):
        own.chat_template = own.chat_template.removeprefix("\ufeff")
