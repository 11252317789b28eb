"""The `dflash` script, and `python -m dflash_suite.cli` where another package owns that name.

Importing the application takes a moment: a Ctrl-C in it ends like one that comes later.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Import the application, and run it."""
    try:
        from .app import app

        app(prog_name="dflash")
    except KeyboardInterrupt:  # before a command runs; what it does then is cli/app.py's
        sys.exit(130)


if __name__ == "__main__":
    main()
