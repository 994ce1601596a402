"""Disk cache of compiled kernels, on cuda.core's atomic, least-recently-used file cache.

An entry is two files: the binary as NVRTC made it, and a small JSON of what ptxas reported
about it (a cache hit writes no compiler log). Nothing in the folder is unpickled or executed
on the host. A folder that cannot be written is said once and done without.
"""

from __future__ import annotations

import json
import logging
import os
from functools import cache
from pathlib import Path
from typing import Any

import platformdirs

from ..errors import InvalidValue

log = logging.getLogger("peakgemm")
MAX_BYTES = 1 << 30


def folder() -> Path:
    """The cache folder: ``$PEAKGEMM_CACHE_DIR``, else the user's cache folder."""
    chosen = os.environ.get("PEAKGEMM_CACHE_DIR")
    return Path(chosen) if chosen else platformdirs.user_cache_path("peakgemm") / "programs"


@cache
def _store(path: Path) -> Any | None:
    from cuda.core.utils import FileStreamProgramCache

    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        return FileStreamProgramCache(path, max_size_bytes=MAX_BYTES)
    except OSError as error:
        log.warning("peakgemm: no compile cache in %s (%s); every process compiles anew. "
                    "Set PEAKGEMM_CACHE_DIR to a folder that can be written.", path, error.strerror)
        return None


def load(key: bytes) -> tuple[bytes, dict[str, Any]] | None:
    """Binary and facts stored under ``key``, or None."""
    store = _store(folder())
    if store is None:
        return None
    try:
        code, facts = store.get(key), store.get(_facts_key(key))
        return (bytes(code), json.loads(facts)) if code and facts else None
    except (OSError, ValueError):
        return None


def save(key: bytes, code: bytes, facts: dict[str, Any]) -> None:
    """Store binary and facts under ``key``; a full or read-only disk is not an error."""
    store = _store(folder())
    if store is None:
        return
    try:
        store[key] = code
        store[_facts_key(key)] = json.dumps(facts).encode()
    except OSError as error:
        _warn_once(str(folder()), error.strerror or str(error))


def clear() -> None:
    """Remove every entry; whatever else lies in the folder stays.

    Raises:
        InvalidValue: an entry that cannot be removed.
    """
    store = _store(folder())
    if store is not None:
        try:
            store.clear()
        except OSError as error:
            raise InvalidValue(f"cannot clear the compile cache in {folder()} ({error.strerror})") from None


@cache
def _warn_once(path: str, reason: str) -> None:
    log.warning("peakgemm: cannot write the compile cache in %s (%s); going on without it.", path, reason)


def _facts_key(key: bytes) -> bytes:
    return key + b":facts"
