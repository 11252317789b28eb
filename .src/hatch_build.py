"""A build from a checkout without symbolic links fails, instead of making an empty wheel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDERS = ("cli", "core", "doctor", "drafters")


class LinksHook(BuildHookInterface[Any]):
    """Looks at the links of the import package before anything is built."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Raises RuntimeError where a folder of the package is not there."""
        package = Path(self.root) / ".src" / "dflash_suite"
        for name in FOLDERS:
            if not (package / name / "__init__.py").is_file():
                raise RuntimeError(
                    f"{package / name} should be a link to the folder {name}/ and is not: this "
                    "checkout has no symbolic links. Clone it again where links can be made "
                    "(git config core.symlinks true)"
                )
