"""Stored probes: what was measured of a model on this device, for later starts to go by.

One small JSON file per model, drafter, dtype, kernels and device, in the suite's cache directory.
It holds only for the very weights and versions that it was measured with; everything else in its
place is ignored with a note. The document (`dflash.probe/1`):

    {"schema": str, "key": {field of ProbeKey: str}, "date": "YYYY-MM-DD",
     "exact_width": int | null, "exact_pads": bool, "exact_fixes_keys": bool,
     "block": int | null, "details": {...}}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from .atomic_files import write_whole
from .checkpoint.listing import list_files
from .json_values import are_texts, bounded, checked, parse_json
from .regular_files import read_regular, read_text
from .settings import cache_directory

if TYPE_CHECKING:
    from .target.target import Target

SCHEMA = "dflash.probe/1"
MOST_ROWS = 64
"""Above any block or width that was ever trained: a larger number was never measured here."""
Note = Callable[[str], None]


@dataclass(frozen=True)
class ProbeKey:
    """What a measurement belongs to.

    model, drafter: directories, the drafter's with its bits or what feeds the head, empty where
    there is none; weights, drafter_weights: `identify` of both; device: kind and name; the rest:
    versions.
    """

    model: str
    dtype: str
    kernels: str
    device: str
    weights: str
    mlx: str
    mlx_lm: str
    suite: str
    drafter: str = ""
    drafter_weights: str = ""

    def with_drafter(self, directory: Path, bits: int) -> ProbeKey:
        """The key of the same target with a drafter."""
        place = directory.resolve()
        return replace(self, drafter=f"{place} {bits}-bit", drafter_weights=identify(place))

    def with_head(self, place: Path, hidden: str, files: Sequence[Path]) -> ProbeKey:
        """The key of the same target with an MTP head of these files, fed by these hidden rows."""
        name = f"{place.resolve()} mtp {hidden}"
        return replace(self, drafter=name, drafter_weights=identify_files(files))

    @property
    def file(self) -> Path:
        """Where its probe is stored. Versions and weights are not part of the name, so that a new
        measurement takes the place of an outdated one."""
        text = "\n".join((self.model, self.dtype, self.kernels, self.device, self.drafter))
        mark = hashlib.sha256(text.encode()).hexdigest()[:16]
        return probe_directory() / f"{mark}.json"


@dataclass(frozen=True)
class StoredProbe:
    """One measurement. date: its day, YYYY-MM-DD.

    exact_width, exact_pads, exact_fixes_keys: the plan under which rows are bitwise equal
    (core/exact/plan.py), None where there is none; block: the drafter's best number of rows (of an
    MTP head one more than its drafts), None without a drafter; details: all figures, as `dflash
    doctor --probe --json` shows them.
    """

    date: str
    exact_width: int | None = None
    exact_pads: bool = False
    exact_fixes_keys: bool = False
    block: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


def probe_directory() -> Path:
    """The stored probes in the user's cache directory."""
    return cache_directory() / "probes"


def today() -> str:
    """This day, as a probe states it."""
    return date.today().isoformat()


def probe_key(target: Target) -> ProbeKey | None:
    """The key of a loaded target; None for one that is in no directory."""
    directory = target.config.path.resolve()
    weights = identify(directory)
    return ProbeKey(str(directory), weights=weights, **conditions(target)) if weights else None


def conditions(target: Target) -> dict[str, str]:
    """What a measurement of a target depends on beside its weights: fields of ProbeKey."""
    import mlx.core as mx

    from .device import dtype_text

    info = mx.device_info()
    kind = "cpu" if mx.default_device() == mx.cpu else "gpu"
    return {
        "dtype": dtype_text(target.compute_dtype),
        "kernels": target.kernels,
        "device": f"{kind} {info.get('device_name') or info.get('architecture') or 'unknown'}",
        "mlx": _version("mlx"),
        "mlx_lm": _version("mlx-lm"),
        "suite": __version__,
    }


def identify(directory: Path) -> str:
    """What changes when the weights of a checkpoint do: its config.json, and names, sizes and
    times of its safetensors files. Empty where these are not there; no weights are read."""
    try:
        config = read_regular(directory / "config.json")
    except OSError:
        return ""
    return identify_files(list_files(directory, "*.safetensors"), config)


def identify_files(files: Sequence[Path], config: bytes = b"") -> str:
    """The same of a list of files, by names, sizes and times. Empty where one is not there."""
    known = hashlib.sha256(config)
    try:
        for file in files:
            state = file.stat()
            known.update(f"{file.name} {state.st_size} {state.st_mtime_ns}\n".encode())
    except OSError:
        return ""
    return known.hexdigest() if files else ""


def load_probe(key: ProbeKey, note: Note = lambda message: None) -> StoredProbe | None:
    """The stored probe of `key`; None where there is none that holds, with a note where a file is
    there and is damaged, of another kind, or outdated."""
    try:
        text = read_text(key.file)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as exc:
        note(f"stored probe {key.file} ignored: it cannot be read ({exc})")
        return None
    try:
        stated, probe = _parse(parse_json(text))
    except ValueError as exc:
        note(f"stored probe {key.file} ignored: {exc}; dflash doctor --probe makes it again")
        return None
    changed = [name for name, value in asdict(key).items() if stated[name] != value]
    if changed:
        said = ", ".join(_changed(name, stated[name], getattr(key, name)) for name in changed)
        note(f"stored probe of {probe.date} ignored: {said}; run dflash doctor --probe again")
        return None
    return probe


def save_probe(key: ProbeKey, probe: StoredProbe) -> Path:
    """Store a probe, whole or not at all; raises OSError, and an older one is still there then."""
    document = {"schema": SCHEMA, "key": asdict(key), **asdict(probe)}
    file = key.file
    write_whole(file, (json.dumps(document, indent=1) + "\n").encode())
    return file


def _parse(document: Any) -> tuple[dict[str, str], StoredProbe]:
    """(key as stated, probe); ValueError says what is wrong."""
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ValueError(f"it is not a {SCHEMA} document")
    key = document.get("key")
    names = {one.name for one in fields(ProbeKey)}
    if not isinstance(key, dict) or set(key) != names or not are_texts([*key.values()]):
        raise ValueError("its 'key' is not a key of a probe")
    given, details = document.get("date"), document.get("details")
    if not isinstance(given, str) or not isinstance(details, dict):
        raise ValueError("'date' or 'details' is missing or of the wrong type")
    date.fromisoformat(given)
    width, block = _rows(document, "exact_width"), _rows(document, "block")
    pads, fixes_keys = (_switch(document, f"exact_{name}") for name in ("pads", "fixes_keys"))
    return key, StoredProbe(given, width, pads, fixes_keys, block, details)


def _rows(document: dict[str, Any], name: str) -> int | None:
    value = document.get(name)
    return None if value is None else bounded(f"'{name}'", value, 2, MOST_ROWS, ValueError)


def _switch(document: dict[str, Any], name: str) -> bool:
    value: bool = checked("switch", f"'{name}'", document.get(name), ValueError)
    return value


def _changed(name: str, stated: str, found: str) -> str:
    """How a field of the key differs, without digests."""
    if name.endswith("weights"):
        return f"the {'drafter' if 'drafter' in name else 'model'}'s files have changed"
    return f"measured with {name.replace('_', '-')} {stated}, this is {found}"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"


@dataclass(frozen=True)
class ProbeEntry:
    """One file of the stored probes. what: the model and drafter that it is of; detail: what is
    wrong with a file that is none, else empty."""

    path: Path
    date: str
    what: str
    detail: str = ""


def list_probes() -> list[ProbeEntry]:
    """The stored probes in the user's cache directory, by file name."""
    entries = []
    for path in list_files(probe_directory(), "*.json"):
        try:
            key, probe = _parse(parse_json(read_text(path)))
        except (OSError, ValueError) as exc:
            entries.append(ProbeEntry(path, "", "", f"not a stored probe: {exc}"))
            continue
        drafter = f" with {key['drafter']}" if key["drafter"] else ""
        what = f"{key['model']}{drafter}, {key['dtype']}, {key['kernels']} kernels, {key['device']}"
        entries.append(ProbeEntry(path, probe.date, what))
    return entries


def clear_probes() -> list[ProbeEntry]:
    """Remove the stored probes; returns them. Files that are none stay."""
    removed = [entry for entry in list_probes() if not entry.detail]
    for entry in removed:
        entry.path.unlink(missing_ok=True)
    return removed
