"""Cubins that a wheel brings, so that a first call needs no compiler; a clone has none, and compiles.

A file for each architecture: a line of JSON, which says where each cubin lies, then the cubins, compressed. That is
read in a millisecond; a zip of a thousand has its directory read in five. A cubin is named by the digest of
what it was made from (of its source no comments: `essence`), so one that no longer matches its source is not found, and
the kernel is compiled as any other; so is every kernel where ``PEAKGEMM_SHIPPED=0``, or where the file is damaged.
``make wheel`` makes them (lab/cubins.py).
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ..runtime.compile import FACTS, Compiled
from ..runtime.source import essence

FOLDER = Path(__file__).parent / "cubins"


def digest(text: str, entry: str, arch: str, macros: Mapping[str, int]) -> str:
    """The name of a cubin: 16 hexadecimal digits of a digest of source, entry, architecture and macros."""
    key = json.dumps([essence(text), entry, arch, sorted(macros.items())])
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def container(arch: str) -> Path:
    """The file of the cubins for ``arch``: those for ``sm_90a`` lie in that of ``sm_90``."""
    return FOLDER / f"{arch.rstrip('af')}.cubins"


class Index(NamedTuple):
    """Of a container: the NVRTC that made it, name to place, bytes and facts of each cubin, and where they begin."""

    nvrtc: str = ""
    cubins: Mapping[str, Any] = MappingProxyType({})
    begin: int = 0


@cache
def index(path: Path) -> Index:
    """What ``path`` holds: nothing where it is not there or damaged, or nothing shipped is wanted."""
    if os.environ.get("PEAKGEMM_SHIPPED") == "0":
        return Index()
    try:
        with path.open("rb") as file:
            found = json.loads(file.readline())
            return Index(found["nvrtc"], dict(found["cubins"]), file.tell())
    except (OSError, ValueError, KeyError, TypeError):
        return Index()


def find(name: str, entry: str, arch: str) -> Compiled | None:
    """The shipped cubin of that `digest`, or None."""
    path = container(arch)
    known = index(path)
    if name not in known.cubins:
        return None
    try:
        place, size, facts = known.cubins[name]
        with path.open("rb") as file:
            file.seek(known.begin + place)
            code = zlib.decompress(file.read(size))
        return Compiled(entry, arch, "cubin", code, **dict(zip(FACTS, facts, strict=True)))
    except (OSError, ValueError, TypeError, zlib.error):
        return None
