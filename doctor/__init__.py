"""`dflash doctor`: does this pair fit, and what does this device make of it.

May import: core and drafters.
Used by: cli.
"""
