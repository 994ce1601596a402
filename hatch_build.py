"""The wheel's cubins: where PEAKGEMM_CUBINS names a folder of them, as `make wheel` does, they go in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Cubins(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Put each container beside the kernels that it is of; none without the variable.

        Raises:
            FileNotFoundError: the folder holds none.
        """
        named = os.environ.get("PEAKGEMM_CUBINS")
        if not named or version == "editable":
            return
        found = sorted(Path(self.root, named).glob("*.cubins"))
        if not found:
            raise FileNotFoundError(f"PEAKGEMM_CUBINS = {named!r} holds no *.cubins; run: make wheel")
        build_data["force_include"].update({str(path): f"peakgemm/kernels/cubins/{path.name}" for path in found})
