"""From CUDA text to a launch: compiler, driver, launches, and steps that share one.

May import: core's errors, settings and device.
Used by: `ops`, and the drafters' kernels.
"""
