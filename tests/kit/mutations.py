"""Checkpoints with one field of a JSON file deleted, retyped or perturbed, and what becomes of them.

A mutation is a function of its number alone, so a run repeats. The weights are those of a sound
checkpoint, shared by all of its mutations through links.
"""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx

from dflash_suite.core.errors import DflashError
from dflash_suite.core.options import LoadOptions, Speculation
from dflash_suite.drafters.engine import Request, from_pair
from dflash_suite.drafters.pair import load_pair
from tests.kit.doctor_pairs import SOUND, edit_json, save_pair
from tests.kit.families import CONFIGS, save_family
from tests.kit.tiny import COMMON, HYBRID
from tests.kit.tiny_drafter import raw_drafter, save_drafter
from tests.kit.tiny_mtp import head_tensors, prefixed

Place = tuple[str | int, ...]
"""Keys and indices down to one value of a JSON file."""
MANY_DIGITS = "@many digits@"
"""Stands for a number that Python would not write."""
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
WRONG: tuple[Any, ...] = (
    None, True, False, "", "x", "7", 0, 1, -1, 2, 3, 7, 0.5, -0.5, 1e-9, 1e308, float("nan"),
    float("inf"), 10**5, 10**9, 2**31, 2**63, 10**400, MANY_DIGITS, [], [1], ["x"], {}, {"x": 1},
    [[[[]]]],
)  # fmt: skip
ADDED: tuple[tuple[str, Any], ...] = (
    ("architectures", ["Qwen3ForCausalLM"]),
    ("layer_types", ["full_attention"] * 4),
    ("layer_types", "x"),
    ("mlp_only_layers", [0]),
    ("num_experts", 4),
    ("quantization", {"group_size": 32, "bits": 4}),
    ("quantization_config", {"quant_method": "fp8"}),
    ("rope_parameters", {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0}),
    ("rope_scaling", {"type": "linear", "factor": 2.0}),
    ("rope_theta", 500000.0),
    ("sliding_window", 16),
    ("text_config", {}),
    ("tie_word_embeddings", True),
    ("use_sliding_window", True),
    ("head_dim", None),
    ("num_key_value_heads", None),
    ("partial_rotary_factor", 0.5),
    ("max_window_layers", 2),
    ("extra", {"a": [1, {"b": None}]}),
    ("id2label", 5),
    ("torch_dtype", "float33"),
    ("model_file", "model.py"),
    ("mlx_lm_extra_tensors", {"mtp_file": "../mtp.safetensors"}),
)
"""Keys that a file may have and this one does not."""


@dataclass(frozen=True)
class Subject:
    """A sound checkpoint, the files of it that are mutated, and the mode that needs them.

    make: saves it into a directory; drafter: what is named as the drafter, below that directory.
    """

    name: str
    speculation: Speculation
    make: Callable[[Path], object]
    files: tuple[str, ...] = ("config.json",)
    drafter: str | None = None


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
    edit_json(directory / "generation_config.json", {"eos_token_id": [0, 2], "top_k": 20})
    raw = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    raw["text_config"] |= {**USUAL, "mtp_num_hidden_layers": 1}
    (directory / "config.json").write_text(json.dumps(raw), encoding="utf-8")


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
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
SUBJECTS: tuple[Subject, ...] = (
    *(Subject(name, "none", _family(name)) for name in CONFIGS),
    Subject("tokenizer", "none", _pair, (*TOKENIZER_FILES, "generation_config.json")),
    Subject("pair", "auto", _pair),
    Subject("dflash", "dflash", _drafter(kind="dflash"), ("drafter/config.json",)),
    Subject("dflash2", "dflash", _drafter(), ("drafter/config.json",)),
    Subject("yarn", "dflash", _drafter(rope_parameters=YARN), ("drafter/config.json",)),
    Subject("head", "mtp", _head, ("head/config.json",), "head"),
)


@dataclass(frozen=True)
class Mutation:
    """One changed checkpoint, and in words what was changed."""

    subject: Subject
    directory: Path
    change: str

    @property
    def drafter(self) -> str | None:
        """What is given as the drafter."""
        name = self.subject.drafter
        return None if name is None else str(self.directory / name)

    def __str__(self) -> str:
        return f"{self.subject.name}: {self.change}"


@dataclass
class Mutations:
    """Makes mutations below `root`, each from its number; sound checkpoints are saved once."""

    root: Path
    _saved: dict[str, Path] = field(default_factory=dict)

    def make(self, number: int) -> Mutation:
        """The mutation of this number."""
        chance = random.Random(number)
        subject = SUBJECTS[number % len(SUBJECTS)]
        sound = self.sound(subject)
        directory = self.root / f"{subject.name}-{number}"
        shutil.copytree(sound, directory, copy_function=_link)
        name = chance.choice(subject.files)
        value = json.loads((directory / name).read_text(encoding="utf-8"))
        change = _mutate(value, chance)
        text = json.dumps(value).replace(f'"{MANY_DIGITS}"', "9" * 5000)
        (directory / name).unlink()
        (directory / name).write_text(text, encoding="utf-8")
        return Mutation(subject, directory, f"{name} {change}")

    def sound(self, subject: Subject) -> Path:
        """The checkpoint without a change."""
        if subject.name not in self._saved:
            self._saved[subject.name] = self.root / f"sound-{subject.name}"
            subject.make(self._saved[subject.name])
        return self._saved[subject.name]


def promised(mutation: Mutation) -> str | None:
    """The route that the doctor shows for the subject's mode, None where there is none."""
    from dflash_suite.doctor.diagnose import diagnose

    diagnosis = diagnose(str(mutation.directory), mutation.drafter, SOUND)
    routes = {route.requested: route.route for route in diagnosis.routes}
    return routes[mutation.subject.speculation]


def taken(mutation: Mutation) -> tuple[str | None, str]:
    """(the route by which generate answers, None where it ends with an error; that error)."""
    loading = LoadOptions(
        model=str(mutation.directory),
        drafter=mutation.drafter,
        speculation=mutation.subject.speculation,
        drafter_bits=16,
        exact=False,
    )
    try:
        pair = load_pair(loading)
        answer = from_pair(pair).complete(Request("def f(", max_tokens=4))
    except DflashError as error:
        return None, str(error)
    return pair.route.route, f"{len(answer.token_ids)} tokens"


def _link(source: str, target: str) -> object:
    """Weights are shared, all else is copied."""
    if source.endswith(".safetensors"):
        return os.link(source, target)
    return shutil.copy(source, target)


def _places(value: Any, before: Place = ()) -> Iterator[Place]:
    """All places of a JSON value but its root, long lists and vocabularies by a few of them."""
    items = list(value.items()) if isinstance(value, dict) else []
    items = list(enumerate(value)) if isinstance(value, list) else items
    for key, inner in items if len(items) <= 64 else items[:3]:
        yield (*before, key)
        yield from _places(inner, (*before, key))


def _mutate(value: Any, chance: random.Random) -> str:
    """Change one place of a JSON value; returns what was done."""
    if chance.random() < 0.12:
        key, added = chance.choice(ADDED)
        inner = value.get("text_config")
        holder = inner if isinstance(inner, dict) and chance.random() < 0.7 else value
        holder[key] = copy.deepcopy(added)
        return f"{key} set to {added!r}"
    place = chance.choice(list(_places(value)))
    holder = value
    for key in place[:-1]:
        holder = holder[key]
    name, last = ".".join(map(str, place)), place[-1]
    kind = chance.choice(("delete", "retype", "retype", "perturb", "perturb"))
    if kind == "delete":
        del holder[last]
        return f"{name} deleted"
    old = holder[last]
    new = chance.choice(WRONG) if kind == "retype" else _perturbed(old, chance)
    holder[last] = copy.deepcopy(new)
    return f"{name} {repr(old)[:60]} -> {repr(new)[:60]}"


def _perturbed(old: Any, chance: random.Random) -> Any:
    """A value near the old one, often of its own type."""
    if isinstance(old, bool):
        return chance.choice((not old, str(old).lower(), int(old)))
    if isinstance(old, int | float):
        near = (old + 1, old - 1, old * 2, old // 2, -old, float(old), str(old), [old], 10 * old)
        return chance.choice(near)
    if isinstance(old, str):
        return chance.choice((old.upper(), old + "x", old[:-1], [old], {old: old}, old[::-1]))
    if isinstance(old, list):
        return chance.choice((old[::-1], old[:-1], old + old[-1:], old * 2, dict.fromkeys("ab")))
    if isinstance(old, dict):
        return chance.choice((list(old), dict(list(old.items())[1:]), {**old, "x": 1}))
    return chance.choice((0, 1, "none", [None]))
