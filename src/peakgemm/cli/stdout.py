"""Standard output that cannot be written: a full disk, or a reader that has left."""

from __future__ import annotations

import errno
import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any


class Guard(io.FileIO):
    """The raw stream of a file descriptor. After its first error it discards what is written; that error is raised, or
    with ``go_on`` only kept in `failed`."""

    def __init__(self, descriptor: int, go_on: bool) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self._go_on = go_on
        self.failed: OSError | None = None

    def write(self, data: Any, /) -> int:
        """As `io.FileIO.write`."""
        if self.failed is None:
            try:
                return super().write(data)
            except OSError as error:
                self.failed = error
                if not self._go_on:
                    raise
        return memoryview(data).nbytes


@contextmanager
def guarded(go_on: bool) -> Iterator[Callable[[], bool]]:
    """A `Guard` below ``sys.stdout``, where that is a stream of the system. Yields what tells whether output was lost,
    and says so on stderr in a line, unless the reader has left: it knows."""
    stream: Any = sys.stdout
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)  # python -u has no buffer
    if not isinstance(stream, io.TextIOWrapper) or not isinstance(raw, io.RawIOBase):
        yield lambda: False
        return
    stream.flush()
    guard = Guard(raw.fileno(), go_on)
    below: Any = guard if raw is buffer else io.BufferedWriter(guard)
    sys.stdout = mine = io.TextIOWrapper(below, stream.encoding, stream.errors, line_buffering=stream.line_buffering,
                                         write_through=stream.write_through)

    def lost() -> bool:
        with suppress(OSError):
            mine.flush()
        if guard.failed is not None and guard.failed.errno != errno.EPIPE:
            print(f"peakgemm: cannot write to the standard output ({guard.failed.strerror}); send it elsewhere",
                  file=sys.stderr)
        return guard.failed is not None

    try:
        yield lost
    finally:
        with suppress(OSError):
            mine.flush()
        sys.stdout = stream
