"""Checkpoints with one field deleted, retyped or perturbed, and what becomes of them.

A mutation is a function of its number alone, so a run repeats. The weights are those of a sound
checkpoint, shared by all of its mutations through links.
"""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflash_suite.core.errors import DflashError
from dflash_suite.core.options import LoadOptions
from dflash_suite.doctor.diagnose import diagnose
from dflash_suite.drafters.engine import from_pair
from dflash_suite.drafters.pair import load_pair
from dflash_suite.drafters.request import Request
from tests.kit.doctor_pairs import SOUND
from tests.kit.mutation_subjects import SUBJECTS, Subject

Place = tuple[str | int, ...]
"""Keys and indices down to one value of a JSON file."""
SECONDS = 20
"""A mutation takes a tenth of one."""
MANY_DIGITS = "@many digits@"
"""Stands for a number that Python would not write."""
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
        change = (_replace if chance.random() < 0.05 else _edit)(directory / name, chance)
        return Mutation(subject, directory, f"{name} {change}")

    def sound(self, subject: Subject) -> Path:
        """The checkpoint without a change."""
        if subject.name not in self._saved:
            self._saved[subject.name] = self.root / f"sound-{subject.name}"
            subject.make(self._saved[subject.name])
        return self._saved[subject.name]


@dataclass(frozen=True)
class Verdicts:
    """The route that the doctor shows, and the one by which generate answers; None: an error.

    said: generate's error, or how long its answer is.
    """

    promised: str | None
    taken: str | None
    said: str

    @property
    def agree(self) -> bool:
        """Whether the doctor was right."""
        return self.promised == self.taken


def judge(mutation: Mutation) -> Verdicts:
    """Ask both. Raises TimeoutError after SECONDS, and what they raise that is no DflashError."""
    with at_most(SECONDS):
        return Verdicts(promised(mutation), *taken(mutation))


def promised(mutation: Mutation) -> str | None:
    """The route that the doctor shows for the subject's mode, None where there is none."""
    diagnosis = diagnose(str(mutation.directory), mutation.drafter, SOUND)
    routes = {route.requested: route.route for route in diagnosis.routes}
    return routes[mutation.subject.speculation]


def taken(mutation: Mutation) -> tuple[str | None, str]:
    """(the route by which generate answers, None where it ends with an error; what it said)."""
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


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """TimeoutError for what hangs in Python code of the main thread."""

    def stop(number: int, frame: object) -> None:
        raise TimeoutError(f"not done after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _edit(file: Path, chance: random.Random) -> str:
    """Change one value of a JSON file, or of a weights file's header."""
    data, rest = file.read_bytes(), b""
    is_json = file.suffix == ".json"
    if not is_json:
        length = int.from_bytes(data[:8], "little")
        data, rest = data[8 : 8 + length], data[8 + length :]
    value = json.loads(data)
    change = _mutate(value, chance)
    text = json.dumps(value).replace(f'"{MANY_DIGITS}"', "9" * 5000).encode()
    file.unlink()
    file.write_bytes(text if is_json else len(text).to_bytes(8, "little") + text + rest)
    return change


def _replace(file: Path, chance: random.Random) -> str:
    """Put something else in a file's place, or damage its bytes."""
    data = file.read_bytes()
    file.unlink()
    kind = chance.choice(("directory", "pipe", "empty", "cut", "dangling", "damaged", "absent"))
    place = chance.randrange(len(data))
    if kind == "directory":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "dangling":
        file.symlink_to("nowhere")
    elif kind != "absent":
        damaged = data[:place] + bytes([data[place] ^ 0x15]) + data[place + 1 :]
        file.write_bytes({"empty": b"", "cut": data[:place], "damaged": damaged}[kind])
    return f"{kind}, at {place}" if kind in ("cut", "damaged") else kind


def _link(source: str, target: str) -> None:
    """Weights are shared, all else is copied."""
    if source.endswith(".safetensors"):
        os.link(source, target)
    else:
        shutil.copy(source, target)


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
    for step in place[:-1]:
        holder = holder[step]
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
