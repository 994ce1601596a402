"""A kernel's source with what each line cost beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...runtime.source import KERNELS
from .core.counters import Counts
from .report import Report


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a source file; ``counts`` is None where no instruction of the kernel comes from it."""

    file: str
    number: int
    text: str
    counts: Counts | None
    faults: tuple[str, ...]


def annotated(report: Report, main: Path | None = None) -> Iterator[Line]:
    """The lines of the kernel's file (``main``, else the first that the report names), then of other files those
    that touch memory or are at fault. PTX that names no file that is here is listed itself."""
    by_line = report.by_line()
    files = list(dict.fromkeys(file for file, _ in (*by_line, *((f.file, f.line) for f in report.faults)) if file))
    itself = str(main) if main is not None and main.suffix == ".ptx" and not any(map(_path, files)) else ""
    if itself:
        files = [itself]
        by_line = {}
        for item in report.instructions:
            by_line.setdefault((itself, item.ptx_line), Counts()).add(item)
    faults: dict[tuple[str, int], list[str]] = {}
    for fault in report.faults:
        where = (itself, fault.ptx_line) if itself else (fault.file, fault.line)
        faults.setdefault(where, []).append(f"{fault.kind}: {fault.message}")
    first = next((f for f in files if main is not None and _path(f) == main.resolve()), files[0] if files else "")
    for file in sorted(files, key=lambda name: (name != first, name)):
        path = _path(file)
        if path is None:
            continue
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            counts = by_line.get((file, number))
            found = tuple(faults.get((file, number), ()))
            if file == first or found or (counts is not None and counts.requests):
                yield Line(file, number, text, counts, found)


def _path(file: str) -> Path | None:
    return next((p.resolve() for p in (KERNELS / file, Path(file)) if p.is_file()), None)
