"""Disk cache of compiled kernels, read without an import that a first call would wait for.

An entry is two files in ``entries``: the binary as NVRTC made it, and a small JSON of what ptxas
reported about it (a cache hit writes no compiler log) with a digest of both. What does not match
its digest is a miss. A file is written aside and renamed in, and its time is that of its last
use; over ``MAX_BYTES`` the oldest go. Nothing in the folder is unpickled; what a stranger may write to
would run on the GPU, and with `bench.cutlass_gemm` on the host, so such a folder is not used. Whatever is
wrong with the folder is said once, and the process goes on from memory.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import InvalidValue

log = logging.getLogger("peakgemm")
MAX_BYTES = 1 << 30
_ELSEWHERE = "Set PEAKGEMM_CACHE_DIR to a folder that can be written."


def folder() -> Path:
    """The folder of compiled programs: ``$PEAKGEMM_CACHE_DIR``, else ``programs`` in the user's cache folder.

    Raises:
        InvalidValue: the variable holds a relative path.
    """
    return _chosen() or _users_folder() / "programs"


def tuned_folder() -> Path:
    """The folder of tuning entries: ``tuned`` in ``$PEAKGEMM_CACHE_DIR`` or in the user's cache folder.

    Raises:
        InvalidValue: as of `folder`.
    """
    return (_chosen() or _users_folder()) / "tuned"


def _chosen() -> Path | None:
    """``$PEAKGEMM_CACHE_DIR``, with ``~`` for the user's home; None where it is not set.

    Raises:
        InvalidValue: a relative path, which would follow the working directory, or the home of an unknown user.
    """
    named = os.environ.get("PEAKGEMM_CACHE_DIR")
    if not named:
        return None
    path = os.path.expanduser(named)
    if not os.path.isabs(path):
        raise InvalidValue(f"PEAKGEMM_CACHE_DIR = {named!r} is not absolute and would follow the working directory; "
                           "set it to an absolute path, or to one that begins with ~/")
    return Path(path)


def _users_folder() -> Path:
    import platformdirs

    return platformdirs.user_cache_path("peakgemm")


def usable() -> bool:
    """Whether compiled programs outlive this process."""
    return _entries() is not None


def load(key: bytes) -> tuple[bytes, dict[str, Any]] | None:
    """Binary and facts stored under ``key``; None without an entry, or with one that is damaged."""
    entries = _entries()
    if entries is None:
        return None
    halves = _halves(entries, key)
    try:
        code, record = (half.read_bytes() for half in halves)
    except FileNotFoundError:  # or half of it evicted, or not yet written by another process
        return None
    except OSError as error:
        _say_once(f"cannot read the compile cache in {folder()} ({_reason(error)}); going on without it.")
        return None
    try:
        read = json.loads(record)
        facts, digest = read["facts"], read["digest"]
        if isinstance(facts, dict) and digest == _digest(key, code, facts):
            for half in halves:
                with suppress(OSError):  # a read-only disk
                    os.utime(half)
            return code, facts
    except (ValueError, KeyError, TypeError):
        pass
    _say_once(f"a damaged entry in the compile cache {folder()} is compiled anew.")
    return None


def save(key: bytes, code: bytes, facts: dict[str, Any]) -> None:
    """Store binary and facts (JSON) under ``key``; a full or read-only disk is not an error."""
    entries = _entries()
    if entries is None:
        return
    record = json.dumps({"digest": _digest(key, code, facts), "facts": facts}).encode()
    try:
        for half, content in zip(_halves(entries, key), (code, record), strict=True):
            _write(half, content)
    except OSError as error:
        for half in _halves(entries, key):  # half an entry helps nobody, least of all on a full disk
            with suppress(OSError):
                half.unlink()
        _say_once(f"cannot write the compile cache in {folder()} ({_reason(error)}); going on without it.")
    else:
        _trim(entries)


def clear(tuned: bool = False) -> None:
    """Remove every compiled program, with ``tuned`` the tuning entries too; other files in the folders stay.

    Raises:
        InvalidValue: an entry that cannot be removed, or a folder that is not private to its user.
    """
    try:
        entries = _entries()
        if entries is not None:
            for _, _, path in _files(entries):
                Path(path).unlink(missing_ok=True)
        elif (problem := trouble(folder())) is not None and folder().exists():
            raise InvalidValue(f"cannot clear the compile cache in {folder()}: {problem}")
        if tuned:
            for file in tuned_folder().rglob("*.json"):
                file.unlink(missing_ok=True)
    except OSError as error:
        raise InvalidValue(f"cannot clear the cache in {folder()} ({_reason(error)})") from None


def usage(root: Path) -> tuple[int, int]:
    """Files below ``root`` and their bytes, tuning entries in a folder of programs left out."""
    files = _files(root, tuned_folder() if root != tuned_folder() else None)
    return len(files), sum(size for _, size, _ in files)


def trouble(path: Path) -> str | None:
    """Why ``path`` cannot serve as the cache folder, with the remedy; None when it can. It is made if need be.

    What lies in it runs on the GPU in its user's name, so nobody else may write to it: it must
    belong to the user or to root, and its mode must not let group or others write.
    """
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = path.stat()
    except OSError as error:
        return f"{_reason(error)}. {_ELSEWHERE}"
    if not hasattr(os, "geteuid"):  # Windows: a folder in the user's profile is private by inheritance
        return None
    if status.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to user {status.st_uid}, this process to user {os.geteuid()}. {_ELSEWHERE}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"other users may write to {path}. Run: chmod go-w {path}"
    return None


def _entries() -> Path | None:
    """The folder of the entries; None, which is said, where it or the one around it cannot be used."""
    programs = folder()
    problem = trouble(programs) or trouble(programs / "entries")
    if problem is None:
        return programs / "entries"
    _say_once(f"no compile cache in {programs}; every process compiles anew: {problem}")
    return None


def _halves(entries: Path, key: bytes) -> tuple[Path, Path]:
    return entries / key.hex(), entries / f"{key.hex()}.json"


def _write(path: Path, content: bytes) -> None:
    """Write aside, in the same folder, and rename in: no reader sees half a file."""
    import tempfile

    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with open(handle, "wb") as file:
            file.write(content)
        os.replace(aside, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(aside)
        raise


def _trim(entries: Path) -> None:
    """Remove the files used least recently, those that a killed process left aside among them, down to the limit."""
    files = sorted(_files(entries))
    excess = sum(size for _, size, _ in files) - MAX_BYTES
    for _, size, path in files:
        if excess <= 0:
            return
        with suppress(OSError):
            os.unlink(path)
        excess -= size


def _files(root: Path, without: Path | None = None) -> list[tuple[int, int, str]]:
    """Time of last use, bytes and path of each file below ``root``, except below ``without``."""
    files = []
    for parent, folders, names in os.walk(root):
        if without is not None:
            folders[:] = [name for name in folders if Path(parent, name) != without]
        for name in names:
            with suppress(OSError):  # evicted meanwhile
                path = os.path.join(parent, name)
                facts = os.stat(path)
                files.append((facts.st_mtime_ns, facts.st_size, path))
    return files


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
