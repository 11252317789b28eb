"""The text of an answer in typed pieces: reasoning, text, calls of tools; and where it stops.

May import: core's errors; neither MLX nor any other package of the core.
Used by: the decode loop (stop strings), and whoever shows or sends an answer.
"""
