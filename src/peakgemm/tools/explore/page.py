"""The explorer's page: the template with style, modules and traces put in. It fetches nothing, and opens from disk."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import InvalidValue
from ..bench.records import write_text

WEB = Path(__file__).with_name("web")
ABOUT = ("Counted by peakgemm's simulator, as Nsight Compute counts. One block of the run, step by step: which lane "
         "loads what, where it lands, what registers hold.")


def page(traces: Sequence[dict[str, Any]], title: str = "peakgemm explorer", about: str = ABOUT,
         start: str = "explorer.js") -> str:
    """The page that shows ``traces``; ``start``: the module that begins."""
    slots = {"TITLE": title, "ABOUT": about, "STYLE": style(),
             "MODULES": json.dumps({"imports": modules()}), "START": start, "DATA": packed(list(traces))}
    text = (WEB / "explorer.html").read_text(encoding="utf-8")
    for name, value in slots.items():
        text = text.replace(f"%{name}%" if name == "START" else f"/*{name}*/", value)
    return text


def style() -> str:
    """The style of the drawings and that of the page."""
    return "".join((WEB / name).read_text(encoding="utf-8") for name in ("drawing.css", "explorer.css"))


def modules() -> dict[str, str]:
    """The import map: each module as a URL of its text, since a page from a disk may import no file beside it."""
    return {f"explorer/{path.name}": "data:text/javascript;base64," + base64.b64encode(path.read_bytes()).decode()
            for path in sorted(WEB.glob("*.js"))}


def packed(data: Any) -> str:
    """JSON that may stand in a script of a page."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def write(path: Path, text: str) -> None:
    """Write a file, whole or not at all, in a folder that is made where it is not there.

    Raises:
        InvalidValue: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidValue(f"cannot write {path} ({error.strerror}); name a place that can be written") from None
    write_text(path, text)


def write_pages(out: Path, traces: Sequence[dict[str, Any]]) -> Path:
    """Write the page of ``traces`` to ``out``: a file where it ends in ``.html``, else a folder with ``index.html`` and
    each trace as JSON. Returns the page's path."""
    if out.suffix == ".html":
        write(out, page(traces))
        return out
    for trace in traces:
        write(out / f"{trace['name']}.json", json.dumps(trace, separators=(",", ":"), allow_nan=False))
    write(out / "index.html", page(traces))
    return out / "index.html"
