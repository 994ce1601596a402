"""Cubins that come with the package: the ones that the published figures were measured with.

ptxas allocates registers differently from release to release, and register banks make that up to a
third of a kernel's speed (docs/experiments.md). So the kernels of the committed table are shipped
as they were compiled and measured, and a first call needs no compiler. An entry is named by the
digest of everything that it was made from; one that no longer matches its source is not found,
and the kernel is compiled as any other. ``make cubins`` makes them anew.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ..runtime.compile import Compiled

FOLDER = Path(__file__).parent / "prebuilt"
_INDEX = FOLDER / "index.json"


def digest(text: str, entry: str, arch: str, macros: Mapping[str, int]) -> str:
    """The name of a cubin: 16 hexadecimal digits of a digest of source, entry, architecture and macros."""
    key = json.dumps([text, entry, arch, sorted(macros.items())])
    return hashlib.sha256(key.encode()).hexdigest()[:16]


@cache
def index() -> Mapping[str, Mapping[str, Any]]:
    """Name of each shipped cubin to its facts (registers, spills, shared memory, the compiler's version)."""
    try:
        found: Mapping[str, Mapping[str, Any]] = json.loads(_INDEX.read_text(encoding="utf-8"))["cubins"]
        return found
    except (OSError, ValueError, KeyError):  # a stripped installation: everything is compiled
        return {}


def find(text: str, entry: str, arch: str, macros: Mapping[str, int]) -> Compiled | None:
    """The shipped cubin of exactly this compilation, or None."""
    if not index():
        return None
    name = digest(text, entry, arch, macros)
    facts = index().get(name)
    if facts is None:
        return None
    try:
        code = lzma.decompress((FOLDER / f"{name}.xz").read_bytes())
    except (OSError, lzma.LZMAError):
        return None
    return Compiled(entry, arch, "cubin", code, facts["registers"], facts["spill_bytes"], facts["stack_bytes"],
                    facts["static_shared"])


def write(entries: Mapping[str, tuple[Compiled, Mapping[str, Any]]]) -> None:
    """Replace the folder's content: name to cubin and what the index shall say of it beyond ptxas's facts."""
    for old in FOLDER.glob("*.xz"):
        if old.stem not in entries:
            old.unlink()
    cubins = {}
    for name, (compiled, facts) in sorted(entries.items()):
        path = FOLDER / f"{name}.xz"
        if not path.exists():
            path.write_bytes(lzma.compress(compiled.code, preset=9 | lzma.PRESET_EXTREME))
        cubins[name] = {**facts, "entry": compiled.entry, "arch": compiled.arch, "registers": compiled.registers,
                        "spill_bytes": compiled.spill_bytes, "stack_bytes": compiled.stack_bytes,
                        "static_shared": compiled.static_shared}
    _INDEX.write_text(json.dumps({"cubins": cubins}, indent=1, sort_keys=True) + "\n", encoding="utf-8")
