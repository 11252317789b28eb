"""`python -m dflash_suite.cli`: the command where another package owns the `dflash` script."""

from .app import app

if __name__ == "__main__":
    app(prog_name="dflash")
