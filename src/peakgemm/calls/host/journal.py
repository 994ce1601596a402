"""What a product of files has finished: a line for each tile, beside the output, from which a later run goes on.

The first line says of which product: inputs, scales, cuts. The others are appended as tiles lie in the output, each
with a checksum; a line that a kill cut short is dropped, and so is one whose tile is not what it says.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidValue

VERSION = 2
_AT_A_TIME = 8 << 20  # bytes of a tile that are packed for a checksum


class Journal:
    """The journal at ``path``, locked for this process until `close`; one thread at a time writes.

    Args:
        path: where it lies, or is to lie.
        head: what the product is: the first line of a new file.

    Attributes:
        head: the first line, as the product began.
        sums: checksums by the numbers of the tiles that lie in the output.

    Raises:
        InvalidValue: another process has it, it cannot be written, or it is of another product; the message says in
            what they differ. Products may differ in their ``cuts``: those in the file hold.
    """

    def __init__(self, path: Path, head: dict[str, Any]) -> None:
        self.path, self.head, self.sums = path, head, dict[int, int]()
        try:
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError as error:
            raise InvalidValue(f"cannot write {path} ({error.strerror}); name another output") from None
        data: bytes | None = None
        try:
            self._lock()
            data = os.read(self._file, os.fstat(self._file).st_size)
            if data:
                self._read(data)
            else:
                self._append(self.head)
        except BaseException:
            self.close()
            if data == b"":
                self.remove()
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

    def _read(self, data: bytes) -> None:
        lines = data.split(b"\n")
        remedy = f"remove {self.path} and {self.path.with_suffix('.partial')} to begin anew"
        try:
            head = json.loads(lines[0])
            if not isinstance(head, dict) or head.get("version") != VERSION:
                raise ValueError
        except ValueError:
            raise InvalidValue(f"{self.path} is no journal of this version; {remedy}") from None
        for name, new in json.loads(json.dumps(self.head)).items():
            old = head.get(name)
            if name != "cuts" and json.dumps(old) != json.dumps(new):  # as text: NaN is unequal to NaN
                raise InvalidValue(f"{self.path} is of another product: {_difference(name, old, new)}; {remedy}")
        self.head = head
        for line in lines[1:-1]:
            try:
                entry = json.loads(line)
                self.sums[int(entry["tile"])] = int(entry["crc32"])
            except (ValueError, KeyError, TypeError):
                break  # what follows is not to be trusted
        os.ftruncate(self._file, len(data) - len(lines[-1]))

    def _append(self, entry: dict[str, Any]) -> None:
        line = (json.dumps(entry) + "\n").encode()
        try:
            if os.write(self._file, line) != len(line):
                raise OSError(28, os.strerror(28))
        except OSError as error:
            raise InvalidValue(f"cannot write {self.path} ({error.strerror}); what is finished stays: free space "
                               "and run the same command again") from None

    def add(self, tile: int, checksum: int) -> None:
        """Tile number ``tile`` lies in the output.

        Raises:
            InvalidValue: the disk is full.
        """
        self._append({"tile": tile, "crc32": checksum})
        self.sums[tile] = checksum

    def close(self) -> None:
        """Let other processes have it."""
        os.close(self._file)

    def remove(self) -> None:
        """The output is complete, or there is nothing of it."""
        self.path.unlink(missing_ok=True)


def _difference(name: str, old: Any, new: Any) -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        what = next(key for key in new if old.get(key) != new[key])
        return f"{name} has {what} {new[what]}, and had {old.get(what)} when it began"
    return f"{name} is {new}, and was {old} when it began"


def checksum(x: NDArray[np.float32]) -> int:
    """CRC-32 of a matrix's bytes, row by row."""
    step, crc = max(1, _AT_A_TIME // max(1, x.shape[1] * x.itemsize)), 0
    for low in range(0, x.shape[0], step):
        crc = zlib.crc32(np.ascontiguousarray(x[low:low + step]).data, crc)
    return crc
