"""`dflash doctor --probe`: a loaded model measured on this device.

May import: core and drafters.
Used by: cli, and the doctor's results.
"""
