"""One thread that owns MLX, and the requests that other threads give it.

May import: core, and the engine.
Used by: whoever serves several requests at a time.
"""
