"""The source lines that line information names, where the files are there."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ...runtime.source import KERNELS
from ..simulator.front.sources import display


def place(file: str | None, line: int | None) -> str:
    """``14_large_tile.cu:23``; empty where there is no line information."""
    return "" if file is None or line is None else f"{Path(file).name}:{line}"


class SourceLines:
    """Source files, read once: those of the package, and those that lie where the line information says."""

    def __init__(self, source: Path | None) -> None:
        self._source = source
        self._lines = cache(self._read)

    def lines(self, file: str | None) -> tuple[str, ...]:
        """The lines of a file; none where it is not there."""
        return () if file is None else self._lines(file)

    def text(self, file: str | None, line: int | None) -> str:
        """One line; empty where it is not there."""
        lines = self.lines(file)
        return lines[line - 1] if line is not None and 0 < line <= len(lines) else ""

    def _read(self, file: str) -> tuple[str, ...]:
        shown = display(file)
        candidates = [KERNELS / shown, Path(file)]
        if self._source is not None:
            candidates.append(self._source.parent / Path(file).name)
        for path in candidates:
            try:
                if path.is_file() and path.suffix in (".cu", ".cuh", ".h", ".hpp", ".py", ".ptx"):
                    return tuple(path.read_text(encoding="utf-8-sig", errors="replace").splitlines())
            except OSError:
                continue
        return ()
