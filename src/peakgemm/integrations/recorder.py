"""What ran where under `peakgemm.use` and `peakgemm run`: counts by library, operation and shape, and checks.

Imported when a program starts: it imports nothing heavy.
"""

from __future__ import annotations

import marshal
import os
import sys
from _thread import allocate_lock
from collections.abc import Callable
from contextlib import suppress
from math import prod
from time import monotonic
from typing import Any

_WRITE_EVERY_S = 1.0  # a process that is killed loses no more than that
_ROWS = 24  # of a table
_NOTES = 24  # sentences that are kept
_MOST = 4096  # rows that are kept: of a program with ever new shapes
UNIT, TINY = 2.0**-24, 2.0**-149
_Key = tuple[str, str, Any, str]  # of a row
_Span = tuple[_Key, Callable[[], bool], Callable[[], float]]  # see `Recorder.clock`


class Recorder:
    """Counts of products.

    Attributes:
        rows: ``(library, operation, shape, reason)`` -> calls and floating-point operations; seconds by the device's
            clock of so many of the calls. ``shape`` is ``(*batch, M, N, K)``, or subscripts. The reason is empty for
            what peakgemm ran; operations count where they are FP32.
        checks: ``done``, ``left_out`` and the ``largest`` difference over its bound; products ``certified``, and
            ``wrong`` ones.
        notes: sentences for the reader.
    """

    def __init__(self, check: int = 0) -> None:
        self.rows: dict[_Key, list[float]] = {}
        self.checks = {"done": 0, "left_out": 0, "largest": 0.0, "certified": 0, "wrong": 0}
        self.notes: list[str] = []
        self.processes = 1
        self.path: str | None = None  # a file that is written from time to time
        self._check, self._seen, self._lock, self._written = check, 0, allocate_lock(), 0.0
        self._compiled, self._elsewhere = _compiled(), 0
        self._spans: list[_Span] = []  # that the device may not have come to the end of

    @property
    def compilations(self) -> int:
        """Kernels that were compiled since."""
        return _compiled() - self._compiled + self._elsewhere

    def add(self, library: str, operation: str, shape: Any, flops: float, reason: str = "") -> None:
        """Count a call."""
        with self._lock:
            row = self._row((library, operation, shape, reason))
            row[0] += 1
            row[1] += flops
        if self.path is not None and monotonic() - self._written > _WRITE_EVERY_S:
            self.write()

    def _row(self, key: _Key) -> list[float]:
        if len(self.rows) >= _MOST and key not in self.rows:
            key = *key[:2], "other shapes", key[3]
        return self.rows.setdefault(key, [0, 0.0, 0.0, 0])

    def is_clocked(self, key: _Key) -> bool:
        """Whether the call that comes is one to time: the second of a row, the third, the fifth, and so on by doubling;
        the first may wait for a compiler."""
        calls = int(self.rows.get(key, (0,))[0])
        return calls > 0 and calls & (calls - 1) == 0

    def clock(self, key: _Key, is_over: Callable[[], bool], ms: Callable[[], float]) -> None:
        """Keep a timed call, which the device may not have come to. If it ``is_over``, `settle` asks for ``ms``: a
        question to the device meanwhile would end a graph's capture."""
        if len(self._spans) < _MOST:
            self._spans.append((key, is_over, ms))

    def settle(self) -> None:
        """Ask for the times of calls that are over."""
        spans, self._spans = self._spans, []
        for span in spans:
            key, is_over, ms = span
            with suppress(Exception):  # the device may be gone
                if is_over():
                    row = self._row(key)
                    row[2] += ms() / 1e3
                    row[3] += 1
                else:
                    self._spans.append(span)

    def note(self, sentence: str) -> None:
        """Tell the reader, once."""
        if len(self.notes) < _NOTES and sentence not in self.notes:
            self.notes.append(sentence)

    def certified(self, fault: str) -> None:
        """Count a product with a certificate, and tell what is wrong with it."""
        with self._lock:
            self.checks["certified"] += 1
            self.checks["wrong"] += bool(fault)
        if fault:
            self.note(fault)

    def due(self) -> bool:
        """Whether the product that comes is one to check."""
        if not self._check:
            return False
        self._seen += 1
        return self._seen % self._check == 0

    def compare(self, xp: Any, ours: Any, reference: tuple[Any, Any], inner: int) -> None:
        """Compare a product with the library's; both lie within ``(K + 3) u scale`` of the exact one.

        Args:
            xp: the library, ``torch`` or ``cupy``.
            reference: the library's product, and ``scale``, that of the absolute values.
            inner: K.
        """
        theirs, scale = reference
        is_complex = "complex" in str(ours.dtype)  # where each part is a sum of twice as many terms
        bound = (3 * (2 * inner + 3) if is_complex else 2 * (inner + 3)) * UNIT * abs(scale) + TINY
        same = (ours == theirs) | (xp.isnan(ours) & xp.isnan(theirs))
        ratio = xp.where(same, xp.zeros_like(bound), abs(ours - theirs) / bound)
        largest = float(ratio.max()) if prod(ratio.shape) else 0.0
        with self._lock:
            self.checks["done"] += 1
            self.checks["largest"] = max(self.checks["largest"], largest if largest == largest else float("inf"))

    def guarded(self, work: Callable[[], Any]) -> Any:
        """``work()``, part of a check; None where the library has no memory for it, or refuses it in a capture, and the
        program goes on without."""
        try:
            return work()
        except Exception:
            with self._lock:
                self.checks["left_out"] += 1
            return None

    def restart(self, path: str) -> None:
        """Begin anew in a forked child, whose parent counts what was before."""
        self.__init__(self._check)  # type: ignore[misc]
        self.path = path

    def to_json(self) -> dict[str, Any]:
        """What `merge` reads."""
        with self._lock:
            rows = [[library, operation, list(shape) if isinstance(shape, tuple) else shape, reason, *counts]
                    for (library, operation, shape, reason), counts in self.rows.items()]
        return {"rows": rows, "checks": self.checks, "notes": self.notes, "compilations": self.compilations,
                "processes": self.processes}

    def write(self) -> None:
        """Write the counts to ``path``, whole or not at all; where the folder has gone nobody wants them."""
        self._written = monotonic()
        if self.path is None:
            return
        try:
            with open(f"{self.path}.new", "wb") as file:
                file.write(marshal.dumps(self.to_json(), 2))  # json would be one more import; 2: of any Python
            os.replace(f"{self.path}.new", self.path)
        except OSError:
            pass

    def merge(self, data: dict[str, Any]) -> None:
        """Add another process's counts."""
        for library, operation, shape, reason, *counts in data.get("rows", ()):
            key = library, operation, tuple(shape) if isinstance(shape, list) else shape, reason
            row = self.rows.setdefault(key, [0, 0.0, 0.0, 0])
            row[:] = [x + y for x, y in zip(row, counts, strict=True)]
        other = data.get("checks", {})
        for name in ("done", "left_out", "certified", "wrong"):
            self.checks[name] += other.get(name, 0)
        self.checks["largest"] = max(self.checks["largest"], other.get("largest", 0.0))
        for sentence in data.get("notes", ()):
            self.note(sentence)
        self._elsewhere += data.get("compilations", 0)
        self.processes += data.get("processes", 0)

    def __str__(self) -> str:
        self.settle()
        ours, every = (sum(row[1] for (*_, reason), row in self.rows.items() if whole or not reason)
                       for whole in (False, True))
        count, left = (sum(int(row[0]) for (*_, reason), row in self.rows.items() if bool(reason) is stays)
                       for stays in (False, True))
        share = f", {100 * ours / every:.1f} % of the FP32 operations" if every else ""
        lines = [f"peakgemm ran {count:,} calls{share}; {left:,} stayed with their library; {self.compilations} "
                 "kernels compiled" + (f"; {self.processes} processes" if self.processes > 1 else "")]
        rows = sorted(self.rows.items(), key=lambda row: (-row[1][1], -row[1][0]))
        cells = [("library", "operation", "shape", "calls", "GFLOP", "ms", "by"), *(
            (library, operation, "x".join(map(str, shape)) if isinstance(shape, tuple) else shape, f"{int(n):,}",
             f"{flops / 1e9:,.1f}" if flops else "-", f"{1e3 * n * seconds / clocked:,.2f}" if clocked else "-",
             f"{library}: {reason}" if reason else "peakgemm")
            for (library, operation, shape, reason), (n, flops, seconds, clocked) in rows[:_ROWS])]
        widths = [max(len(row[i]) for row in cells) for i in range(6)]
        for row in cells if rows else ():
            padded = [f"{x:{'<' if i < 3 else '>'}{widths[i]}}" for i, x in enumerate(row[:6])]
            lines.append("  " + "  ".join([*padded, row[6]]))
        if not rows:
            imported = " and ".join(name for name in ("torch", "jax", "cupy") if name in sys.modules)
            lines.append(f"no product on a GPU was seen; imported: {imported or 'neither torch, jax nor cupy'}")
        if len(rows) > _ROWS:
            lines.append(f"  and {len(rows) - _ROWS} rows more, which --json writes")
        if self._check or self.checks["done"]:
            done, largest = self.checks["done"], self.checks["largest"]
            lines.append(f"checked {done:,} products; the largest difference from the library's was {largest:.3g} of "
                         "the bound")
        if self.checks["certified"]:
            lines.append(f"certified {self.checks['certified']:,} products; {self.checks['wrong']:,} are wrong")
        if left_out := self.checks["left_out"]:
            lines.append(f"{left_out:,} products that were due were not looked at, for want of memory or in a capture")
        return "\n".join(lines + self.notes)


def _compiled() -> int:
    """Compilations of this process, counted where the compiler has been imported."""
    compiler = sys.modules.get("peakgemm.runtime.nvrtc")
    return getattr(compiler, "builds", 0)
