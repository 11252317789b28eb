"""`python -m dflash_suite`: the `dflash` command."""

from __future__ import annotations

from dflash_suite.cli.__main__ import main

if __name__ == "__main__":
    main()
