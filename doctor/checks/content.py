"""With --verify: is the downloaded data what the hub's cache says that it is?"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from ..results import CheckResult
from .check import Check, Words, check
from .subjects import Checkpoint

SHA256 = re.compile(r"[0-9a-f]{64}")
"""The hub's cache names a large file's blob by its sha256."""
EXPECTED = "weight files whose sha256 is the name that the hub's cache gave them"
FIX = "remove the file that is named and fetch it again"


def compare(say: Words, checkpoint: Checkpoint) -> CheckResult:
    """Reads all data of files that come from the hub; others have nothing to be held against."""
    known = [file for file in checkpoint.files if SHA256.fullmatch(file.resolve().name)]
    wrong = [file for file in known if _digest(file) != file.resolve().name]
    if wrong:
        return say.warned(f"{', '.join(map(str, wrong))}: other content than was announced")
    count = len(checkpoint.files)
    return say.passed(f"{len(known)} of {count} files hashed; no hash is known of the others")


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


target_content: Check[Checkpoint] = check("target.content", EXPECTED, FIX)(compare)
drafter_content: Check[Checkpoint] = check("drafter.content", EXPECTED, FIX)(compare)
