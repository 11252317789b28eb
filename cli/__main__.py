"""The `dflash` script, and `python -m dflash_suite.cli` where another package owns that name.

Importing the application takes a moment: a Ctrl-C in it ends like one that comes later.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Import the application, and run it."""
    from .interrupt import is_interrupt

    try:
        from .app import app

        app(prog_name="dflash")
    except (KeyboardInterrupt, ImportError) as exc:
        if not is_interrupt(exc):  # before a command runs; then it is cli/app.py's
            raise
        sys.exit(130)


if __name__ == "__main__":
    main()
