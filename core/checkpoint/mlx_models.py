"""mlx-lm's model files without mlx-lm itself, whose own import costs a second of transformers.

Only for looking (the doctor): where mlx-lm is already imported, its own modules are returned.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from ..errors import CheckpointError

PACKAGE = "mlx_lm.models"
PRIVATE = f"{__package__}._mlx_lm_models"
"""The name under which the same files are imported where mlx-lm is not: nothing of mlx-lm's own
names is touched, and a later `import mlx_lm` gets its own modules."""


def model_module(name: str) -> ModuleType:
    """`mlx_lm.models.NAME`, or a private copy of it; the files import only one another and mlx.

    Raises CheckpointError where mlx-lm is not installed, ImportError for a name it lacks.
    """
    package = PACKAGE if PACKAGE in sys.modules else _private_package()
    return importlib.import_module(f"{package}.{name}")


def _private_package() -> str:
    if PRIVATE not in sys.modules:
        spec = find_spec("mlx_lm")
        places = list(spec.submodule_search_locations or ()) if spec is not None else []
        if not places:
            raise CheckpointError("mlx-lm is not installed; install it: pip install mlx-lm")
        package = ModuleType(PRIVATE, "mlx-lm's model files, imported apart.")
        package.__path__ = [str(Path(place) / "models") for place in places]
        sys.modules[PRIVATE] = package
    return PRIVATE
