"""Groups of options in `--help`, in the order in which they are shown."""

from __future__ import annotations

PROMPT = "Prompt"
MODEL = "Model"
SPECULATION = "Speculation"
SAMPLING = "Sampling (greedy unless asked for)"
OUTPUT = "Output"
MEASURING = "Measuring"
ADVANCED = "Advanced"
