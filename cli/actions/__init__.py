"""What each command does, given its options as dataclasses.

May import: `input`, `text`, `export`, and everything below cli.
Used by: `commands`.
"""
