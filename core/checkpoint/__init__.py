"""Files of a model directory, judged before any weight is opened, and the table of families.

May import: core's errors, options and settings.
Used by: targets, drafters and the doctor.
"""
