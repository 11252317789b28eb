"""A loaded target: its forward with taps and tape, by a class for each kind of decoder.

May import: `checkpoint`, `cache`, core's errors, options and device.
Used by: the decode loop, drafters, and whoever loads a model.
"""
