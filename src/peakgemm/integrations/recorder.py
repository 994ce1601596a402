"""What ran where under `peakgemm.use` and `peakgemm run`: counts by library, operation and shape, and checks.

Imported when a program starts: it imports nothing heavy.
"""

from __future__ import annotations

import marshal
import os
import sys
from _thread import allocate_lock
from collections.abc import Callable
from math import prod
from time import monotonic
from typing import Any

_WRITE_EVERY_S = 1.0  # a process that is killed loses no more than that
_ROWS = 24  # of a table
_NOTES = 24  # sentences that are kept
_MOST = 4096  # rows that are kept: of a program with ever new shapes
UNIT, TINY = 2.0**-24, 2.0**-149


class Recorder:
    """Counts of products.

    Attributes:
        rows: ``(library, operation, shape, reason)`` -> calls and floating-point operations. ``shape`` is ``(*batch, M,
            N, K)``, or subscripts. The reason is empty for what peakgemm ran; operations count where they are FP32.
        checks: ``done``, ``left_out`` and the ``largest`` difference over its bound; products ``certified``, and
            ``wrong`` ones.
        notes: sentences for the reader.
    """

    def __init__(self, check: int = 0) -> None:
        self.rows: dict[tuple[str, str, Any, str], list[float]] = {}
        self.checks = {"done": 0, "left_out": 0, "largest": 0.0, "certified": 0, "wrong": 0}
        self.notes: list[str] = []
        self.processes = 1
        self.path: str | None = None  # a file that is written from time to time
        self._check, self._seen, self._lock, self._written = check, 0, allocate_lock(), 0.0
        self._compiled, self._elsewhere = _compiled(), 0

    @property
    def compilations(self) -> int:
        """Kernels that were compiled since."""
        return _compiled() - self._compiled + self._elsewhere

    def add(self, library: str, operation: str, shape: Any, flops: float, reason: str = "") -> None:
        """Count a call."""
        with self._lock:
            key = library, operation, shape, reason
            if len(self.rows) >= _MOST and key not in self.rows:
                key = library, operation, "other shapes", reason
            row = self.rows.setdefault(key, [0, 0.0])
            row[0] += 1
            row[1] += flops
        if self.path is not None and monotonic() - self._written > _WRITE_EVERY_S:
            self.write()

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
        for library, operation, shape, reason, count, flops in data.get("rows", ()):
            key = library, operation, tuple(shape) if isinstance(shape, list) else shape, reason
            row = self.rows.setdefault(key, [0, 0.0])
            row[0] += count
            row[1] += flops
        other = data.get("checks", {})
        for name in ("done", "left_out", "certified", "wrong"):
            self.checks[name] += other.get(name, 0)
        self.checks["largest"] = max(self.checks["largest"], other.get("largest", 0.0))
        for sentence in data.get("notes", ()):
            self.note(sentence)
        self._elsewhere += data.get("compilations", 0)
        self.processes += data.get("processes", 0)

    def __str__(self) -> str:
        ours, every = (sum(flops for (*_, reason), (_, flops) in self.rows.items() if whole or not reason)
                       for whole in (False, True))
        count, left = (sum(int(n) for (*_, reason), (n, _) in self.rows.items() if bool(reason) is stays)
                       for stays in (False, True))
        share = f", {100 * ours / every:.1f} % of the FP32 operations" if every else ""
        lines = [f"peakgemm ran {count:,} calls{share}; {left:,} stayed with their library; {self.compilations} "
                 "kernels compiled" + (f"; {self.processes} processes" if self.processes > 1 else "")]
        rows = sorted(self.rows.items(), key=lambda row: (-row[1][1], -row[1][0]))
        cells = [("library", "operation", "shape", "calls", "GFLOP", "by"), *(
            (library, operation, "x".join(map(str, shape)) if isinstance(shape, tuple) else shape, f"{int(n):,}",
             f"{flops / 1e9:,.1f}" if flops else "-", f"{library}: {reason}" if reason else "peakgemm")
            for (library, operation, shape, reason), (n, flops) in rows[:_ROWS])]
        widths = [max(len(row[i]) for row in cells) for i in range(5)]
        for row in cells if rows else ():
            padded = [f"{x:{'<' if i < 3 else '>'}{widths[i]}}" for i, x in enumerate(row[:5])]
            lines.append("  " + "  ".join([*padded, row[5]]))
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
