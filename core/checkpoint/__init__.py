"""Files of a model directory, read and judged before any weight is opened.

May import: core's errors, options and settings.
Used by: targets, drafters and the doctor.
"""
