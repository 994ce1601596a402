"""The comment at the head of a kernel file: its idea, what it removes and leaves, its gain."""

from __future__ import annotations

from pathlib import Path


def header_comment(path: Path) -> str:
    """The leading ``//`` lines of a source file, without the slashes."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("//"):
            break
        lines.append(line[2:].removeprefix(" "))
    return "\n".join(lines)
