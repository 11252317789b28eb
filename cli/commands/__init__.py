"""The commands, a file each: their options as dataclasses, and one call of an action.

May import: `actions`, `options`, and core's options.
Used by: `app`.
"""
