"""Sound checkpoints of every kind, for `mutations.py` to damage."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from dflash_suite.core.options import Speculation
from tests.kit.doctor_pairs import edit_json, save_pair
from tests.kit.families import CONFIGS, save_family
from tests.kit.tiny import COMMON, HYBRID
from tests.kit.tiny_drafter import raw_drafter, save_drafter
from tests.kit.tiny_mtp import head_tensors, prefixed

USUAL: dict[str, Any] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "dtype": "float32",
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "mlp_bias": False,
    "pad_token_id": None,
    "use_cache": True,
    "transformers_version": "5.8.0",
}
"""What published files have besides what decides the arithmetic."""


@dataclass(frozen=True)
class Subject:
    """A sound checkpoint, the files of it that are mutated, and the mode that needs them.

    make: saves it into a directory; files: those that are mutated; drafter: what is named as the
    drafter, below that directory; route: that of the sound checkpoint.
    """

    name: str
    speculation: Speculation
    make: Callable[[Path], object]
    files: tuple[str, ...] = ("config.json",)
    drafter: str | None = None
    route: str = "none"


def _family(name: str) -> Callable[[Path], object]:
    def make(directory: Path) -> object:
        save_family(directory, name)
        raw = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        text = raw.get("text_config", raw)
        text.update({key: value for key, value in USUAL.items() if key not in text})
        return (directory / "config.json").write_text(json.dumps(raw), encoding="utf-8")

    return make


def _pair(directory: Path) -> None:
    """A hybrid target with a head in its files and a DFlash2 drafter beside it."""
    save_pair(directory)
    raw = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    raw["text_config"] |= {**USUAL, "mtp_num_hidden_layers": 1}
    (directory / "config.json").write_text(json.dumps(raw), encoding="utf-8")


def _sharded(directory: Path) -> None:
    """Two shards and an index, the tensors packed, two modules at another width."""
    packing = {"group_size": 32, "bits": 4, "lm_head": {"group_size": 32, "bits": 8}}
    save_family(directory, "qwen3", quantization={**packing, "model.embed_tokens": False})
    whole = directory / "model.safetensors"
    arrays: Any = mx.load(str(whole))
    names = sorted(arrays)
    mx.eval(arrays)
    whole.unlink()
    shards: dict[str, str] = {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        kept = {name: arrays[name] for name in part}
        mx.save_safetensors(str(directory / file), kept, metadata={"format": "mlx"})
        shards |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 1}, "weight_map": shards}
    edit_json(directory / "model.safetensors.index.json", index)


def _tokenizer(directory: Path) -> None:
    """A target with all that may stand in a tokenizer's files."""
    save_family(directory, "qwen3")
    marks = {"content": "<mask>", "lstrip": False, "rstrip": False, "single_word": False}
    settings = {
        "added_tokens_decoder": {"2": {**marks, "normalized": False, "special": True}},
        "add_bos_token": False,
        "additional_special_tokens": ["<mask>"],
        "bos_token": "<bos>",
        "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1024,
        "pad_token": None,
        "tool_parser_type": "json_tools",
        "unk_token": None,
    }
    edit_json(directory / "tokenizer_config.json", settings)
    edit_json(directory / "generation_config.json", {"eos_token_id": [0, 2], "top_k": 20})
    edit_json(directory / "special_tokens_map.json", {"eos_token": "<eos>"})
    edit_json(directory / "added_tokens.json", {"<mask>": 2})


def _drafter(**changes: Any) -> Callable[[Path], object]:
    def make(directory: Path) -> None:
        save_pair(directory)
        shutil.rmtree(directory / "drafter")
        raw = raw_drafter(**changes)
        save_drafter(directory / "drafter", {**USUAL, **raw})

    return make


def _head(directory: Path) -> None:
    """A hybrid target without a head, and the head in a folder of its own."""
    save_pair(directory)
    (directory / "mtp.safetensors").unlink()
    shutil.rmtree(directory / "drafter")
    folder = directory / "head"
    folder.mkdir()
    text = {**COMMON, **copy.deepcopy(HYBRID)}
    edit_json(folder / "config.json", {"model_type": "qwen3_5_mtp", "text_config": text})
    tensors = prefixed(head_tensors(hf=False))
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, metadata={"format": "mlx"})


YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0,
    "original_max_position_embeddings": 512,
}  # fmt: skip
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "generation_config.json", "special_tokens_map.json",
    "added_tokens.json",
)  # fmt: skip
SHARDS = ("model-00001-of-00002.safetensors", "model.safetensors.index.json")
DRAFTER, DRAFTER_WEIGHTS = ("drafter/config.json",), "drafter/model.safetensors"
SUBJECTS: tuple[Subject, ...] = (
    *(Subject(name, "none", _family(name)) for name in CONFIGS),
    Subject("tokenizer", "none", _tokenizer, TOKENIZER_FILES),
    Subject("sharded", "none", _sharded, ("config.json", *SHARDS)),
    Subject("pair", "auto", _pair, route="dflash2"),
    Subject("dflash", "dflash", _drafter(kind="dflash"), DRAFTER, route="dflash"),
    Subject("dflash2", "dflash", _drafter(), (*DRAFTER, DRAFTER_WEIGHTS), route="dflash2"),
    Subject("yarn", "dflash", _drafter(rope_parameters=YARN), DRAFTER, route="dflash2"),
    Subject("head", "mtp", _head, ("head/config.json", "head/model.safetensors"), "head", "mtp"),
)
