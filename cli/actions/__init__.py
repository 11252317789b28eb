"""What each command does, given its options as dataclasses.

May import: `options`, `input`, `text`, `export`, and everything below cli.
Used by: `commands`.
"""
