"""What a product of files has finished: a line for each tile, beside the output, from which a later run goes on.

The first line says of which product: inputs, scales, cuts. It is there whole or not at all. The others are appended as
tiles lie in the output, each with a checksum; a line that a kill cut short is dropped, and so is one whose tile is not
what it says.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidValue

VERSION = 1
_AT_A_TIME = 8 << 20  # bytes of a tile that are packed for a checksum


class Journal:
    """The journal at ``path``, locked for this process until `close`.

    Args:
        path: where it lies, or is to lie.
        head: what the product is; the first line of the file.

    Raises:
        InvalidValue: another process has it, it cannot be written, or it is of another product; the message says in
            what they differ.
    """

    def __init__(self, path: Path, head: dict[str, Any]) -> None:
        self.path, self._write = path, Lock()
        if not path.exists():
            aside = path.with_name(f"{path.name}.{os.getpid()}")
            try:
                aside.write_text(json.dumps(head) + "\n", encoding="utf-8")
                _name(aside, path)
            except OSError as error:
                raise InvalidValue(f"cannot write {path} ({error.strerror}); free space there, or name another "
                                   "output") from None
            finally:
                aside.unlink(missing_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_APPEND)
        try:
            self._lock()
            self.sums, whole = _read(path, os.read(self._file, os.fstat(self._file).st_size), head)
            os.ftruncate(self._file, whole)
        except BaseException:
            os.close(self._file)
            raise

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:  # Windows: two runs are the user's affair
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InvalidValue(f"another process works on {self.path.with_suffix('')}; wait for it, or end "
                               "it") from None

    def add(self, tile: int, checksum: int) -> None:
        """Tile number ``tile`` lies in the output.

        Raises:
            InvalidValue: the disk is full.
        """
        line = (json.dumps({"tile": tile, "crc32": checksum}) + "\n").encode()
        with self._write:
            try:
                if os.write(self._file, line) != len(line):
                    raise OSError(28, os.strerror(28))
            except OSError as error:
                raise InvalidValue(f"cannot write {self.path} ({error.strerror}); what is finished stays: free space "
                                   "and run the same command again") from None
            self.sums[tile] = checksum

    def drop(self, tile: int) -> None:
        """A tile is not what its line says: it is to be computed again."""
        self.sums.pop(tile, None)

    def close(self) -> None:
        """Let other processes have it."""
        os.close(self._file)

    def remove(self) -> None:
        """The output is complete."""
        self.path.unlink(missing_ok=True)


def _name(aside: Path, path: Path) -> None:
    """Give a file its name, unless another process has been quicker: its journal holds."""
    try:
        os.link(aside, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links
        os.replace(aside, path)


def _read(path: Path, data: bytes, head: dict[str, Any]) -> tuple[dict[int, int], int]:
    """The checksums by tile, and how many bytes hold whole lines."""
    lines = data.split(b"\n")
    whole = len(data) - len(lines[-1])
    remedy = f"remove {path} and {path.with_suffix('.partial')} to begin anew"
    try:
        found = json.loads(lines[0])
        if not isinstance(found, dict) or found.get("version") != VERSION:
            raise ValueError
    except ValueError:
        raise InvalidValue(f"{path} is no journal of this version; {remedy}") from None
    head = json.loads(json.dumps(head))
    for name in head:
        if name != "cuts" and json.dumps(found.get(name)) != json.dumps(head[name]):  # as text: NaN is unequal to NaN
            what = _difference(name, found.get(name), head[name])
            raise InvalidValue(f"{path} is of another product: {what}; {remedy}")
    sums: dict[int, int] = {}
    for line in lines[1:-1]:
        try:
            entry = json.loads(line)
            sums[int(entry["tile"])] = int(entry["crc32"])
        except (ValueError, KeyError, TypeError):
            break  # what follows is not to be trusted
    return sums, whole


def head_of(path: Path) -> dict[str, Any] | None:
    """The first line of the journal at ``path``, where there is one."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.readline())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _difference(name: str, old: Any, new: Any) -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        what = next(key for key in new if old.get(key) != new[key])
        return f"{name} has {what} {new[what]}, and had {old.get(what)} when it began"
    return f"{name} is {new}, and was {old} when it began"


def checksum(x: NDArray[np.float32]) -> int:
    """CRC-32 of a matrix's bytes, row by row."""
    step, found = max(1, _AT_A_TIME // max(1, x.shape[1] * x.itemsize)), 0
    for low in range(0, x.shape[0], step):
        found = zlib.crc32(np.ascontiguousarray(x[low:low + step]).data, found)
    return found
