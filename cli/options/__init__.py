"""Options that commands share, and settings as their defaults.

May import: core's options, errors and settings.
Used by: `commands`.
"""
