"""What a benchmark needs of drafters: arms by their text, opened arms, prompts.

May import: core, and what opens a pair.
Used by: `dflash bench`.
"""
