"""Cubins that come with the package: the ones that the published figures were measured with.

ptxas allocates registers differently from release to release, and register banks make that up to a
third of a kernel's speed (docs/experiments.md). So the kernels of the committed table are shipped
as they were compiled and measured, and a first call needs no compiler. An entry is named by the
digest of everything that it was made from; one that no longer matches its source is not found,
and the kernel is compiled as any other; so is every kernel where ``PEAKGEMM_SHIPPED=0``. ``make cubins``
makes them anew.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ..runtime.compile import Compiled

FOLDER = Path(__file__).parent / "prebuilt"
_INDEX = FOLDER / "index.json"
_FACTS = ("registers", "spill_bytes", "stack_bytes", "static_shared")


def digest(text: str, entry: str, arch: str, macros: Mapping[str, int]) -> str:
    """The name of a cubin: 16 hexadecimal digits of a digest of source, entry, architecture and macros."""
    key = json.dumps([text, entry, arch, sorted(macros.items())])
    return hashlib.sha256(key.encode()).hexdigest()[:16]


@cache
def index() -> Mapping[str, Mapping[str, Any]]:
    """Name of each shipped cubin to its facts (registers, spills, shared memory, the compiler's version)."""
    if os.environ.get("PEAKGEMM_SHIPPED") == "0":
        return {}
    try:
        found: Mapping[str, Mapping[str, Any]] = json.loads(_INDEX.read_text(encoding="utf-8"))["cubins"]
        return found
    except (OSError, ValueError, KeyError):  # a stripped installation: everything is compiled
        return {}


def find(name: str, entry: str, arch: str) -> Compiled | None:
    """The shipped cubin of that `digest`, or None."""
    facts = index().get(name)
    if facts is None:
        return None
    try:
        code = lzma.decompress((FOLDER / f"{name}.xz").read_bytes())
    except (OSError, lzma.LZMAError):
        return None
    return Compiled(entry, arch, "cubin", code, *(facts[fact] for fact in _FACTS))


def write(keep: Iterable[str], new: Mapping[str, tuple[Compiled, str]]) -> None:
    """Bring the folder up to date: ``keep`` names what stays, ``new`` gives cubins and the compiler's version."""
    kept = {name: dict(facts) for name, facts in index().items() if name in set(keep)}
    for path in FOLDER.glob("*.xz"):
        if path.stem not in kept:
            path.unlink()
    for name, (cubin, compiler) in new.items():
        (FOLDER / f"{name}.xz").write_bytes(lzma.compress(cubin.code, preset=9 | lzma.PRESET_EXTREME))
        kept[name] = {"nvrtc": compiler, "entry": cubin.entry, "arch": cubin.arch,
                      **{fact: getattr(cubin, fact) for fact in _FACTS}}
    _INDEX.write_text(json.dumps({"cubins": kept}, indent=1, sort_keys=True) + "\n", encoding="utf-8")
