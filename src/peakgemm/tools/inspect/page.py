"""One page of source, PTX and SASS, linked line by line: the template with the data put in, no network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..bench.records import write_text
from .rows import compared, rows
from .source import SourceLines, place
from .view import View

TEMPLATE = Path(__file__).with_name("page.html")
_SLOT = "/*DATA*/"
_CONTEXT = 3  # lines of source shown around those that the loop came from


def page(views: Sequence[View]) -> str:
    """The page of one view, or of two compared, as text."""
    data = [_data(one) for one in views]
    if len(views) == 2:
        for place_, one in enumerate(data):
            pairs = compared(views[0].facts, views[1].facts)
            one["rows"] = [[pair.group, pair.name, (pair.first, pair.second)[place_], pair.differs] for pair in pairs]
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")  # no end of the script within it
    return TEMPLATE.read_text(encoding="utf-8").replace(_SLOT, text)


def write_page(path: Path, views: Sequence[View]) -> None:
    """Write `page`, whole or not at all.

    Raises:
        InvalidValue: the file cannot be written.
    """
    write_text(path, page(views))


def _data(one: View) -> dict[str, Any]:
    lines = one.listing.lines
    files = list(dict.fromkeys(line.file for line in lines if line.file is not None))
    of_ptx: dict[int, list[str]] = {}
    sass = []
    for line in lines:
        keys = []
        if line.file is not None:
            keys.append(f"s{files.index(line.file)}:{line.line}")
        if line.ptx is not None:
            of_ptx.setdefault(line.ptx, []).extend(key for key in keys if key not in of_ptx.get(line.ptx, ()))
            keys.append(f"p{line.ptx}")
        sass.append({**line.to_json(), "keys": keys})
    return {
        "label": one.subject.label, "rows": [[row.group, row.name, row.text, False] for row in rows(one.facts)],
        "notes": one.facts["notes"], "source": _source(one, files), "sass": sass, "part": one.listing.part,
        "ptx": [[number, one.listing.ptx[number - 1].replace("\t", " ")] for number in sorted(of_ptx)],
        "ptxsource": {str(number): keys for number, keys in of_ptx.items()},
    }


def _source(one: View, files: Sequence[str]) -> list[dict[str, Any]]:
    """Of each file the lines that the loop came from, and a few around them."""
    reader, parts = SourceLines(one.subject.source), []
    for file in files:
        used = [line.line for line in one.listing.lines
                if line.file == file and line.line is not None]
        first = max(min(used) - _CONTEXT, 1)
        text = reader.lines(file)[first - 1:max(used) + _CONTEXT]
        parts.append({"name": place(file, first).rpartition(":")[0] + ("" if text else " (not found here)"),
                      "first": first, "lines": list(text)})
    return parts
