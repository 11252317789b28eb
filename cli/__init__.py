"""The `dflash` command: the only package that prints.

May import: everything else.
Used by: nobody but the command itself.
"""
