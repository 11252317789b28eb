"""The `dflash` command: the only package that prints."""
