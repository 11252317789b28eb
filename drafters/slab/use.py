"""One slab, used or made: the only way to get at it.

What stands on the disk is used only where its key, its layout and all its checksums are right;
anything else is made again, and a note says why.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO, Generic, Literal, TypeVar

from ...core.checkpoint.weight_source import content_hash
from ...core.errors import SlabError, SlabWriteError
from ...core.report import Report
from .build import FileSink, Plan, pack_source
from .file_format import Slab, SlabFacts, open_slab, write_fully
from .store import UNWRITABLE, sweep, write_slab

T = TypeVar("T")
Verdict = Literal["current", "renamed"]


@dataclass(frozen=True)
class Obtained(Generic[T]):
    """value: what `take` made of the slab; built: whether this call wrote it."""

    value: T
    path: Path
    built: bool


@dataclass(frozen=True)
class SlabStore:
    """The slab of one plan in its places, best first.

    source_path: what the slab says of where its source is; force: make it anew; verify: hash the
    source although its quick key is unchanged.
    """

    plan: Plan
    places: Sequence[Path]
    report: Report
    source_path: str = ""
    force: bool = False
    verify: bool = False

    def obtain(self, take: Callable[[Slab], T]) -> Obtained[T]:
        """Open the slab, making it first where needed; `take` reads and checks its data.

        Raises TensorError for a source that cannot be packed, SlabWriteError where no place
        takes the slab.
        """
        if not self.force:
            for path in self.places:
                found = self._open(path, take)
                if found is not None:
                    return found
        for path in self.places:
            try:
                done = partial(self._is_made, path)
                built = write_slab(path, self.plan.size_bytes, self._build, done, self.report)
            except OSError as exc:
                if exc.errno in UNWRITABLE and path != self.places[-1]:
                    continue
                raise SlabWriteError(
                    f"{path} could not be written ({exc.strerror or exc}); nothing was changed. "
                    "Make room there"
                ) from exc
            try:
                with open_slab(path) as slab:
                    return Obtained(take(slab), path, built)
            except FileNotFoundError as exc:
                raise SlabWriteError(f"{path} was removed before it could be opened") from exc
        raise AssertionError("a store has at least one place")

    def _open(self, path: Path, take: Callable[[Slab], T]) -> Obtained[T] | None:
        """The slab at `path` if it can be used; otherwise a note says why not."""
        sweep(path)
        try:
            with open_slab(path) as slab:
                verdict = self._judge(slab)
                value = take(slab)
                if verdict == "renamed":
                    self._rekey(slab)
                _mark_used(path)
                return Obtained(value, path, False)
        except FileNotFoundError:
            return None
        except SlabError as exc:
            self.report.note(f"{exc}; it is not used, and made again")
        except OSError as exc:
            self.report.note(f"{path} cannot be read ({exc.strerror}); it is not used")
        return None

    def _judge(self, slab: Slab) -> Verdict:
        """Raises SlabError for a slab of something else."""
        facts, source = slab.facts, self.plan.source
        if facts.options != self.plan.options or _layout(slab) != _layout(self.plan):
            raise SlabError(f"{slab.path} has another layout than {source.directory} asks for")
        same_key = facts.source_files == source.files
        if same_key and not self.verify:
            return "current"
        if not source.is_like(facts.source_files) or self._content() != facts.content:
            raise SlabError(f"{slab.path} was made from other weights than {source.directory} has")
        return "current" if same_key else "renamed"

    def _content(self) -> str:
        return content_hash(self.plan.source, self.report.bytes_of("hashing the source"))

    def _is_made(self, path: Path) -> bool:
        """Under the lock: whether another process has made the slab meanwhile."""
        if self.force:
            return False
        try:
            with open_slab(path) as slab:
                verdict = self._judge(slab)
                slab.verify()
                return verdict == "current"
        except (SlabError, OSError):
            return False

    def _build(self, stream: BinaryIO) -> None:
        sink = FileSink(self.plan, stream, self._facts())
        sink.finish(pack_source(self.plan, sink, self.report.bytes_of("quantizing")))

    def _facts(self) -> SlabFacts:
        return SlabFacts(
            options=self.plan.options,
            source_path=self.source_path,
            source_files=self.plan.source.files,
            content="0" * 64,
            mlx_version=version("mlx"),
        )

    def _rekey(self, slab: Slab) -> None:
        """The source was touched, copied or renamed: keep the data under the new quick key."""
        facts = replace(self._facts(), content=slab.facts.content)
        header = slab.rekeyed(facts)

        def write(stream: BinaryIO) -> None:
            slab.copy_data(stream, len(header))
            write_fully(stream, header, 0)

        try:
            write_slab(
                slab.path, slab.size_bytes, write, partial(self._is_made, slab.path), self.report
            )
            self.report.note(f"{slab.path}: same weights under a new name or time; key renewed")
        except OSError as exc:
            self.report.note(
                f"{slab.path} is right, but its key cannot be renewed ({exc.strerror})"
            )


def _mark_used(path: Path) -> None:
    """Its access time says when it was last used, by which it is kept or let go; mounts that keep
    no such times take one that is set."""
    with suppress(OSError):  # somebody else's, or a disk that cannot be written
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))


def _layout(holder: Slab | Plan) -> dict[str, tuple[str, tuple[int, ...], int, int]]:
    tensors = holder.header.tensors if isinstance(holder, Slab) else holder.tensors
    return {name: (info.dtype, info.shape, info.start, info.stop) for name, info in tensors.items()}
