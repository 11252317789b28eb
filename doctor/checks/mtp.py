"""The MTP head: promised and present, its tensors, and how its norms are stored.

mlx-lm drops `mtp.*` and converters lose it, so config.json's promise says nothing of the files.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ...core.checkpoint.safetensors_headers import listing
from ...core.errors import DflashError
from ...drafters.mtp.find import MtpSource, absence, find_head, open_folder
from ...drafters.mtp.load import check_head, read_arrays
from ...drafters.mtp.norms import judge_norms
from ..results import CheckResult, NotReached
from .check import Check, Words, check
from .once import once, reach
from .subjects import TargetSubject

PROMISES = ("mtp_num_hidden_layers", "num_nextn_predict_layers")
CONVERTED, ORIGINAL = "as they are (MLX)", "less one (HF)"


class MtpSubject:
    """A target's head, in its own files or in a folder; has_drafter: a DFlash drafter is there."""

    def __init__(self, target: TargetSubject, folder: Path | None, has_drafter: bool) -> None:
        self.target = target
        self.folder = folder
        self.has_drafter = has_drafter

    @once
    def source(self) -> MtpSource | None:
        """The head, None where there is none. Raises as find_head and open_folder."""
        reach(self.target.tensors)
        if self.folder is not None:
            return open_folder(self.folder, self.target.config)
        return find_head(self.target.config)

    @property
    def present(self) -> MtpSource:
        """The head; NotReached where there is none."""
        if self.source is None:
            raise NotReached("mtp.head")
        return self.source

    @property
    def is_present(self) -> bool:
        """Whether there is a head that could be opened."""
        try:
            return self.source is not None
        except (DflashError, NotReached):
            return False

    @property
    def is_promised(self) -> bool:
        """Whether config.json speaks of a head."""
        raw = self.target.config.raw
        places = (raw, raw.get("text_config") or {})
        return any(place.get(key) for place in places for key in PROMISES)


@check(
    "mtp.head",
    "an MTP head where config.json promises one, or a DFlash drafter in its place",
    "take the original repository's mtp.* tensors into mtp.safetensors beside the weights",
)
def head(say: Words, subject: MtpSubject) -> CheckResult:
    """Told by tensor names alone."""
    if subject.source is not None:
        return say.passed(f"{len(subject.source.tensors)} tensors, {subject.source.where}")
    found = absence(subject.target.config)
    if subject.is_promised and not subject.has_drafter:
        return say.warned(found)
    return say.passed(found)


@check(
    "mtp.tensors",
    "one layer whose tensors fit the target",
    "take the head of the very model that the target was converted from",
)
def tensors(say: Words, subject: MtpSubject) -> CheckResult:
    """Kind, names and shapes; experts numbered, fused or stacked; packed or not."""
    source, text = subject.present, subject.target.model
    model, _ = check_head(source, subject.target.config, getattr(text, "language_model", text).args)
    return say.passed(f"all {len(source.tensors)} accounted for, {len(model.layers)} layer")


@check(
    "mtp.norms",
    "norm weights whose values tell how they are stored",
    "say it to generate by --mtp-norms raw or --mtp-norms shifted",
)
def norms(say: Words, subject: MtpSubject) -> CheckResult:
    """What the loader will take them for; headers alone, of a hub repository, tell less."""
    if subject.target.is_mirror:
        told = set(_evidence(subject))
        if len(told) != 1:
            return say.warned(
                "undecided from headers: " + ("they contradict" if told else "no sign")
            )
        return say.passed(f"stored {told.pop()}")
    source = subject.present
    forms = judge_norms(read_arrays(source), source.where)
    found = {"raw": ORIGINAL, "shifted": CONVERTED}
    if len(set(forms.values())) > 1:
        raw = sorted(name for name, form in forms.items() if form == "raw")
        return say.warned(f"mixed: {listing(raw)} {ORIGINAL}, the others {CONVERTED}")
    return say.passed(f"stored {found[next(iter(forms.values()))]}" if forms else "none")


def _evidence(subject: MtpSubject) -> Iterable[str]:
    """What each sign says."""
    source = subject.present
    files = {found.info.file for found in source.tensors.values()}
    headers = {header.file: header for header in subject.target.headers}
    own = any(file in headers for file in files)
    formats = {headers[file].metadata.get("format") for file in files if file in headers}
    if not own:
        from ...core.checkpoint.safetensors_headers import read_header

        formats = {read_header(file).metadata.get("format") for file in files}
    yield from (CONVERTED if form == "mlx" else ORIGINAL for form in formats if form)
    stored = {found.stored_name for found in source.tensors.values()}
    if any(".switch_mlp." in name for name in stored) or not any("mtp." in n for n in stored):
        yield CONVERTED
    if any(".mlp.experts." in name for name in stored):
        yield ORIGINAL
    if own:
        convolutions = (
            info.shape for name, info in subject.target.tensors.items() if "conv1d" in name
        )
        yield from (CONVERTED if shape[-1] == 1 else ORIGINAL for shape in convolutions)


MTP_CHECKS: tuple[Check[MtpSubject], ...] = (head, tensors, norms)
