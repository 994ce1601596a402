"""What `peakgemm limits` says as a page: how busy each resource is, where warps wait, and warps over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

_STYLE = Path(__file__).parents[1] / "explore" / "web" / "drawing.css"  # colours are the explorer's
_LEAST = 0.02  # shares below it in all columns are left out
_WIDTH = 6     # rem of a full bar
_CYCLE, _ROW = 2.2, 12  # pixels
_KINDS = {"compute": "FFMA, tensor cores", "load": "loads from shared memory", "stage": "stores to shared memory",
          "copy": "loads of global memory, copies", "store": "stores to global memory", "barrier": "barriers",
          "other": "others"}
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{style}
body {{ color-scheme: light dark; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif;
  max-width: 76rem; margin: 1rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; margin: 1rem 0; }} th {{ text-align: left; }} td, th {{ padding: 1px 8px 1px 0; }}
td {{ min-width: 9rem; text-align: right; font-variant-numeric: tabular-nums; }}
.bar {{ float: left; height: 0.7rem; margin-top: 0.35rem; background: var(--first); border-radius: 2px; }}
.scrolls {{ overflow-x: auto; }}
</style></head><body class="drawn"><main>{body}</main></body></html>
"""


def page(found: Sequence[Mapping[str, Any]]) -> str:
    """HTML that needs no other file; ``found``: of `limits.limits` with its timeline."""
    labels = [one["label"] for one in found]
    said = "".join(f"<p><strong>{escape(one['label'])}</strong> on {escape(one['gpu'])}: "
                   f"{one['tflops']:.1f} TFLOPS, {one['ms']:.3f} ms by the model. Limited by {escape(one['limiter'])}. "
                   f"{escape(one['next'])}.</p>" for one in found)
    parts = [f"<h1>What limits {escape(' and '.join(labels))}</h1>", said,
             bars("share of the time that it is busy", labels, [one["busy"] for one in found]),
             bars("share of a warp's cycles", labels, [one["stalls"] for one in found])]
    parts += [_timeline(one["label"], one["timeline"]) for one in found]
    return _PAGE.format(title=f"Limits of {escape(' and '.join(labels))}", style=_STYLE.read_text(encoding="utf-8"),
                        body="".join(parts))


def bars(title: str, heads: Sequence[str], shares: Sequence[Mapping[str, float]]) -> str:
    """A table with a row for each name, and a bar in a column for each of ``shares``; the last one orders the rows."""
    names = sorted({name for each in shares for name, share in each.items() if share >= _LEAST},
                   key=lambda name: -shares[-1].get(name, 0.0))
    cells = {name: "".join(f'<td><span class="bar" style="width: {_WIDTH * each.get(name, 0.0):.2f}rem"></span>'
                           f"{100 * each.get(name, 0.0):.0f} %</td>" for each in shares) for name in names}
    rows = "".join(f'<tr><th scope="row">{name}</th>{cells[name]}</tr>' for name in names)
    columns = "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    return (f'<table class="bars"><thead><tr><th scope="col">{title}</th>{columns}</tr></thead><tbody>{rows}</tbody>'
            "</table>")


def _timeline(label: str, issued: Sequence[tuple[float, float, int, str]]) -> str:
    """Warps over time: a rectangle for each instruction that one issues, as long as it keeps its scheduler."""
    if not issued:
        return ""
    start, warps = issued[0][0], sorted({warp for _, _, warp, _ in issued}, key=lambda warp: (warp % 4, warp))
    rows = {warp: _ROW * number for number, warp in enumerate(warps)}
    end = max(at + takes for at, takes, _, _ in issued) - start
    marks = "".join(f'<rect class="{kind}" x="{70 + _CYCLE * (at - start):.1f}" y="{rows[warp]}" width="'
                    f'{max(_CYCLE * takes - 0.4, 1):.1f}" height="{_ROW - 3}"/>' for at, takes, warp, kind in issued)
    names = "".join(f'<text x="0" y="{y + _ROW - 4}">warp {warp}</text>' for warp, y in rows.items())
    kinds = {kind for *_, kind in issued}
    key = "".join(f'<li><span class="swatch {kind}"></span>{words}</li>' for kind, words in _KINDS.items()
                  if kind in kinds)
    width, height = 70 + _CYCLE * end, _ROW * len(warps)
    return (f"<h2>{escape(label)}: {end:,.0f} cycles of the main loop</h2><p>A row is a warp, those of a scheduler "
            f'below each other. Where a row is empty, it waits.</p><ul class="legend">{key}</ul><div class="scrolls" '
            f'role="region" aria-label="Warps over time" tabindex="0"><svg width="{width:.0f}" height="{height}" '
            f'role="img" aria-label="Warps over time">{names}{marks}</svg></div>')
