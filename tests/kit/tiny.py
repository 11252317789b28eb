"""Tiny seeded targets with random weights: untied, and 2-D weights times 4.

A tied random model repeats one token for ever, which no test of a decode loop can use;
`assert_varied` holds that these do not.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map, tree_map_with_path
from mlx_lm.generate import generate_step
from mlx_lm.models import llama, qwen3, qwen3_5

from dflash_suite.core.checkpoint.target_config import TargetConfig
from dflash_suite.core.target.backbones import Backbone
from dflash_suite.core.target.families import backbone_class
from dflash_suite.core.target.gated_delta import GdnTape
from dflash_suite.core.target.target import Target

Kind = Literal["hybrid", "dense", "llama"]
Precision = Literal["float32", "bfloat16", "4bit"]

VOCAB = 512
HIDDEN = 64
LAYERS = 4
GDN_LAYERS = 3
GROUP_SIZE = 32
MODULES = {"hybrid": qwen3_5, "dense": qwen3, "llama": llama}

COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 2 * HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
}
HYBRID: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 100000.0,
        "partial_rotary_factor": 0.25,
    },
}


def raw_config(kind: Kind, **changes: Any) -> dict[str, Any]:
    """config.json of a tiny target; `changes` go where the decoder's fields are."""
    if kind == "hybrid":
        text = {**COMMON, **copy.deepcopy(HYBRID), **changes}
        return {"model_type": "qwen3_5", "text_config": text, "tie_word_embeddings": False}
    model_type = "qwen3" if kind == "dense" else "llama"
    return {"model_type": model_type, **COMMON, "rope_theta": 10000.0, **changes}


def make_model(
    kind: Kind = "hybrid", precision: Precision = "float32", seed: int = 0, **changes: Any
) -> Any:
    """An mlx-lm model with seeded random weights; 4bit is quantized at float32 compute."""
    mx.random.seed(seed)
    module: Any = MODULES[kind]
    # A copy, because mlx-lm's ModelArgs rewrite the nested rope_parameters that they are given.
    model = module.Model(module.ModelArgs.from_dict(copy.deepcopy(raw_config(kind, **changes))))
    model.update(tree_map(lambda w: w * 4 if w.ndim == 2 else w, model.parameters()))
    if precision == "bfloat16":
        keeps_cast = getattr(model, "cast_predicate", lambda path: True)
        model.update(
            tree_map_with_path(
                lambda path, w: w.astype(mx.bfloat16) if keeps_cast(path) else w,
                model.parameters(),
            )
        )
    if precision == "4bit":
        nn.quantize(model, group_size=GROUP_SIZE, bits=4)
    model.eval()
    mx.eval(model.parameters())
    return model


def target_config(
    kind: Kind = "hybrid",
    eos_ids: Iterable[int] = (),
    path: Path = Path("tiny"),
    **changes: Any,
) -> TargetConfig:
    """The configuration that `read_target_config` would read from such a checkpoint."""
    raw = raw_config(kind, **changes)
    text = raw.get("text_config", raw)
    return TargetConfig(
        path=path,
        model_type=raw["model_type"],
        vocab_size=text["vocab_size"],
        num_hidden_layers=text["num_hidden_layers"],
        hidden_size=text["hidden_size"],
        eos_ids=frozenset(eos_ids),
        raw=raw,
    )


def make_target(
    kind: Kind = "hybrid",
    precision: Precision = "float32",
    seed: int = 0,
    eos_ids: Iterable[int] = (),
    **changes: Any,
) -> Target:
    """A tiny target, bound to the backbone class of its family; no forward check."""
    config = target_config(kind, eos_ids, **changes)
    model = make_model(kind, precision, seed, **changes)
    return Target(backbone_class(config.model_type)(model), config)


def with_eos(target: Target, eos_ids: Iterable[int]) -> Target:
    """The same weights under other end-of-sequence ids."""
    config = target.config
    return Target(
        target.backbone,
        TargetConfig(
            path=config.path,
            model_type=config.model_type,
            vocab_size=config.vocab_size,
            num_hidden_layers=config.num_hidden_layers,
            hidden_size=config.hidden_size,
            eos_ids=frozenset(eos_ids),
            raw=config.raw,
        ),
    )


class CountingBackbone(Backbone):
    """A backbone that counts: `rows` of every forward, `embedded` ids of every embedding.

    The forwards are counted here, below the loop, so that no counter of the loop is trusted.
    """

    def __init__(self, inner: Backbone) -> None:
        super().__init__(inner.model)
        self.inner = inner
        self.cache_kind = inner.cache_kind
        self.rows: list[int] = []
        self.taps: list[tuple[int, ...]] = []
        self.head_rows: list[int] = []
        self.embedded: list[mx.array] = []

    def make_cache(self) -> list[Any]:
        return self.inner.make_cache()

    def gdn_layers(self) -> list[Any | None]:
        return self.inner.gdn_layers()

    def embed(self, token_ids: mx.array) -> mx.array:
        self.embedded.append(token_ids)
        return self.inner.embed(token_ids)

    def logits(self, hidden: mx.array) -> mx.array:
        self.head_rows.append(int(hidden.shape[1]))
        return self.inner.logits(hidden)

    def run(
        self, token_ids: mx.array, cache: Sequence[Any], tap_ids: Sequence[int], record: bool
    ) -> tuple[mx.array, list[mx.array], list[GdnTape | None]]:
        self.embedded.append(token_ids)
        self.rows.append(int(token_ids.shape[1]))
        self.taps.append(tuple(tap_ids))
        return self.inner.run(token_ids, cache, tap_ids, record)


def prompt(length: int, seed: int = 1, vocab: int = VOCAB) -> list[int]:
    """`length` seeded ids."""
    mx.random.seed(seed)
    return as_ids(mx.random.randint(0, vocab, (length,)))


def as_ids(array: mx.array) -> list[int]:
    """A one-dimensional array of ids as a list (reads from the device)."""
    return cast(list[int], array.tolist())


def stock_greedy(model: Any, prompt_ids: Sequence[int], count: int) -> list[int]:
    """`count` greedy ids by mlx-lm's own generate_step: no eos, no stop."""
    steps = generate_step(mx.array(list(prompt_ids)), model, max_tokens=count)
    return [int(token) for token, _ in steps]


def assert_varied(ids: Sequence[int], over: int = 20, within: int = 60) -> None:
    """A fixture whose output hardly varies would let almost any bug pass."""
    assert len(ids) >= within
    distinct = len(set(ids[:within]))
    assert distinct > over, f"only {distinct} distinct ids in {within}: a vacuous fixture"


class PieceDetokenizer:
    """A detokenizer without a tokenizer: id -> text, by default a word `<id>`.

    As mlx-lm's: `last_segment` is the text since the last look.
    """

    def __init__(self, pieces: dict[int, str] | None = None) -> None:
        self._pieces = pieces or {}
        self._segment = ""
        self.tokens: list[int] = []
        self.finalized = 0

    def add_token(self, token: int) -> None:
        self.tokens.append(token)
        self._segment += self._pieces.get(token, f"<{token}>")

    def finalize(self) -> None:
        self.finalized += 1

    @property
    def last_segment(self) -> str:
        segment, self._segment = self._segment, ""
        return segment


def save_checkpoint(
    directory: Path,
    kind: Kind = "hybrid",
    precision: Precision = "float32",
    seed: int = 0,
    eos_ids: Sequence[int] = (0,),
    **changes: Any,
) -> Path:
    """A checkpoint directory as mlx-lm writes one: config, weights, and a byte tokenizer."""
    directory.mkdir(parents=True, exist_ok=True)
    raw = raw_config(kind, **changes)
    raw["eos_token_id"] = list(eos_ids)
    if precision == "4bit":
        raw["quantization"] = {"group_size": GROUP_SIZE, "bits": 4}
    (directory / "config.json").write_text(json.dumps(raw, indent=1), encoding="utf-8")
    save_weights(directory / "model.safetensors", make_model(kind, precision, seed, **changes))
    save_byte_tokenizer(directory)
    return directory


def save_weights(file: Path, model: Any) -> None:
    """All parameters of a module in one safetensors file."""
    arrays: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(file), arrays, metadata={"format": "mlx"})


def save_byte_tokenizer(directory: Path) -> None:
    """A byte-level tokenizer: id = byte + 3; 0 `<eos>`, 1 `<bos>`, 2 `<mask>`."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    specials = ["<eos>", "<bos>", "<mask>"]
    vocab = {name: index for index, name in enumerate(specials)}
    vocab.update({byte_character(byte): byte + len(specials) for byte in range(256)})
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in specials])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def byte_character(byte: int) -> str:
    """The visible character that byte-level BPE writes for a byte: bytes that Latin-1 prints
    stand for themselves, the others follow from U+0100 on."""
    visible = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    if byte in visible:
        return chr(byte)
    return chr(256 + [other for other in range(256) if other not in visible].index(byte))
