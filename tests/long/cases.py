"""The tests marked `long`, and the cases that `make test` leaves out of tests marked `thinned`."""

from __future__ import annotations

import subprocess
import sys

from tests.kit.places import ROOT

OPTIONS = ("-m", "long", "-n", "auto", "--dist", "load")


def main() -> int:
    """Run them over all cores; the exit code is pytest's."""
    command = [sys.executable, "-m", "pytest", *OPTIONS]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
