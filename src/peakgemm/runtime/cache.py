"""Disk cache of compiled kernels, on cuda.core's atomic, least-recently-used file cache.

An entry is two files: the binary as NVRTC made it, and a small JSON of what ptxas reported
about it (a cache hit writes no compiler log) with a digest of both. What does not match its
digest is a miss. Nothing in the folder is unpickled or executed on the host; what a stranger
may write to would run on the GPU, so such a folder is not used. Whatever is wrong with the
folder is said once, and the process goes on from memory.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import InvalidValue

log = logging.getLogger("peakgemm")
MAX_BYTES = 1 << 30
_ELSEWHERE = "Set PEAKGEMM_CACHE_DIR to a folder that can be written."


def folder() -> Path:
    """The folder of compiled programs: ``$PEAKGEMM_CACHE_DIR``, else ``programs`` in the user's cache folder."""
    chosen = os.environ.get("PEAKGEMM_CACHE_DIR")
    return Path(chosen) if chosen else _users_folder() / "programs"


def tuned_folder() -> Path:
    """The folder of tuning entries: ``tuned`` in ``$PEAKGEMM_CACHE_DIR`` or in the user's cache folder."""
    chosen = os.environ.get("PEAKGEMM_CACHE_DIR")
    return (Path(chosen) if chosen else _users_folder()) / "tuned"


def _users_folder() -> Path:
    import platformdirs

    return platformdirs.user_cache_path("peakgemm")


def usable() -> bool:
    """Whether compiled programs outlive this process."""
    return _store(folder()) is not None


def load(key: bytes) -> tuple[bytes, dict[str, Any]] | None:
    """Binary and facts stored under ``key``; None without an entry, or with one that is damaged."""
    store = _store(folder())
    if store is None:
        return None
    try:
        code, record = store.get(key), store.get(_facts_key(key))
    except OSError as error:
        _say_once(f"cannot read the compile cache in {folder()} ({_reason(error)}); going on without it.")
        return None
    if code is None or record is None:  # half of it evicted, or not yet written by another process
        return None
    try:
        read = json.loads(record)
        facts, digest = read["facts"], read["digest"]
        if isinstance(facts, dict) and digest == _digest(key, bytes(code), facts):
            return bytes(code), facts
    except (ValueError, KeyError, TypeError):
        pass
    _say_once(f"a damaged entry in the compile cache {folder()} is compiled anew.")
    return None


def save(key: bytes, code: bytes, facts: dict[str, Any]) -> None:
    """Store binary and facts (JSON) under ``key``; a full or read-only disk is not an error."""
    store = _store(folder())
    if store is None:
        return
    try:
        store[key] = code
        store[_facts_key(key)] = json.dumps({"digest": _digest(key, code, facts), "facts": facts}).encode()
    except OSError as error:
        drop(key)  # half an entry helps nobody, least of all on a full disk
        _say_once(f"cannot write the compile cache in {folder()} ({_reason(error)}); going on without it.")


def drop(key: bytes) -> None:
    """Forget the entry under ``key``, if there is one."""
    store = _store(folder())
    if store is not None:
        for half in (key, _facts_key(key)):
            with suppress(KeyError, OSError):
                del store[half]


def clear(tuned: bool = False) -> None:
    """Remove every compiled program, with ``tuned`` the tuning entries too; other files in the folders stay.

    Raises:
        InvalidValue: an entry that cannot be removed, or a folder that is not private to its user.
    """
    try:
        store = _store(folder())
        if store is not None:
            store.clear()
        elif (problem := trouble(folder())) is not None and folder().exists():
            raise InvalidValue(f"cannot clear the compile cache in {folder()}: {problem}")
        if tuned:
            for file in tuned_folder().rglob("*.json"):
                file.unlink(missing_ok=True)
    except OSError as error:
        raise InvalidValue(f"cannot clear the cache in {folder()} ({_reason(error)})") from None


def usage(place: Path) -> tuple[int, int]:
    """Files below ``place`` and their bytes, tuning entries in a folder of programs left out."""
    sizes = list(_sizes(place, tuned_folder() if place != tuned_folder() else None))
    return len(sizes), sum(sizes)


def trouble(place: Path) -> str | None:
    """Why ``place`` cannot serve as the cache folder, with the remedy; None when it can. It is made if need be.

    What lies in it runs on the GPU in its user's name, so nobody else may write to it: it must
    belong to the user or to root, and its mode must not let group or others write.
    """
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = place.stat()
    except OSError as error:
        return f"{_reason(error)}. {_ELSEWHERE}"
    if not hasattr(os, "geteuid"):  # Windows: a folder in the user's profile is private by inheritance
        return None
    if found.st_uid not in (0, os.geteuid()):
        return f"{place} belongs to user {found.st_uid}, this process to user {os.geteuid()}. {_ELSEWHERE}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"other users may write to {place}. Run: chmod go-w {place}"
    return None


@cache
def _store(path: Path) -> Any | None:
    from cuda.core.utils import FileStreamProgramCache

    # The store's own folders are made here first, since it leaves their mode to the umask.
    problem = next(filter(None, map(trouble, (path, path / "entries", path / "tmp"))), None)
    if problem is None:
        try:
            return FileStreamProgramCache(path, max_size_bytes=MAX_BYTES)
        except OSError as error:
            problem = f"{_reason(error)}. {_ELSEWHERE}"
    _say_once(f"no compile cache in {path}; every process compiles anew: {problem}")
    return None


def _sizes(place: Path, without: Path | None) -> Iterator[int]:
    for parent, folders, names in os.walk(place):
        if without is not None:
            folders[:] = [name for name in folders if Path(parent, name) != without]
        for name in names:
            with suppress(OSError):  # evicted meanwhile
                yield os.path.getsize(os.path.join(parent, name))


@cache
def _say_once(message: str) -> None:
    log.warning("peakgemm: %s", message)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _digest(key: bytes, code: bytes, facts: dict[str, Any]) -> str:
    """Binds the facts to the binary and both to their key: an entry under another's name is damaged too."""
    whole = hashlib.sha256(key)
    whole.update(hashlib.sha256(code).digest())
    whole.update(json.dumps(facts, sort_keys=True).encode())
    return whole.hexdigest()


def _facts_key(key: bytes) -> bytes:
    return key + b":facts"
