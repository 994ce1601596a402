"""The page of a report: one file, no network, every figure at two widths with its command and conditions."""

from __future__ import annotations

from html import escape
from pathlib import Path

from ...errors import InvalidValue
from ...version import __version__
from ..bench.records import write_text
from .data import Data
from .figures import WIDTH, Figure, conditions, figures
from .svg import DARK, LIGHT, STYLE, variables

TEMPLATE = Path(__file__).with_name("page.html")
MOST_BYTES = 3_000_000
NARROW = 360  # of a figure on a phone


def page(data: Data) -> str:
    """The page as text.

    Raises:
        InvalidValue: no figure can be made of the records, or the page would be larger than 3 MB.
    """
    shown = list(figures(data))
    if not shown:
        raise InvalidValue("no figure can be made of these records: nothing in them was measured, compiled or judged")
    gpu = data.device
    title = f"peakgemm on {gpu['name']}" if gpu else "peakgemm, without a GPU"
    slots = {
        "TITLE": escape(title),
        "LEAD": escape(_lead(data)),
        "LIGHT": variables(LIGHT), "DARK": variables(DARK), "CHART": STYLE,
        "NAV": "".join(f'<a href="#{one.name}">{escape(one.title)}</a>' for one in shown),
        "MAIN": "\n".join(map(_section, shown)),
        "FOOT": _foot(data),
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    for name, value in slots.items():
        text = text.replace(f"{{{{{name}}}}}", value)
    if len(text.encode()) > MOST_BYTES:
        raise InvalidValue(f"the page would have {len(text.encode()):,} bytes, at most {MOST_BYTES:,} are allowed; "
                           "give fewer records")
    return text


def write_page(path: Path, data: Data) -> int:
    """Write `page`, whole or not at all; how many bytes it has."""
    text = page(data)
    write_text(path, text)
    return len(text.encode())


def _lead(data: Data) -> str:
    gpu = data.device
    if gpu is None:
        return "Facts and simulated counts; nothing here was timed."
    return (f"{gpu['name']}: {gpu['arch']}, {gpu['sm_count']} SMs, at most {gpu['clock_mhz']} MHz, "
            f"{gpu['bandwidth_gbs']:g} GB/s, L2 {gpu['l2_bytes'] / 2 ** 20:.0f} MiB.")


def _section(one: Figure) -> str:
    parts = [f'<section id="{one.name}"><h2>{escape(one.title)}</h2><p>{escape(one.text)}</p>']
    if one.draw is not None:
        wide, narrow = one.draw(WIDTH).text(), one.draw(NARROW).text()
        if one.folded:
            parts.append("<details><summary>Chart</summary>")
        parts.append(f'<figure><div class="wide">{wide}</div><div class="narrow">{narrow}</div>')
        parts.append(f'<figcaption>{_sources(one)}<button type="button" class="save" data-name="{one.name}">'
                     "Save as SVG</button></figcaption></figure>" + "</details>" * one.folded)
    if one.table is not None:
        count = len(one.table.rows)
        own = one.draw is None
        parts.append(f"<details{'' if one.folded or one.draw else ' open'}><summary>Table, {count} "
                     f"row{'s' * (count != 1)}</summary><div class='scroll' tabindex='0' role='region' "
                     f'aria-label="{escape(one.title)}, table">{one.table.html()}</div></details>')
        if own:
            parts.append(f'<div class="caption">{_sources(one)}</div>')
    return "\n".join(parts) + "</section>"


def _sources(one: Figure) -> str:
    said = "".join(f"<div><code>{escape(source.record['command'])}</code><br>{escape(conditions(source))}. "
                   f"<span>{escape(source.path.name)}</span></div>" for source in one.sources)
    return said if len(one.sources) <= 2 else (
        f"<details><summary>Commands and conditions of {len(one.sources)} records</summary>{said}</details>")


def _foot(data: Data) -> str:
    left = "".join(f"<li>{escape(name)}: {escape(what)}</li>" for name, what in data.left_out.items())
    return (f"<p>Written by peakgemm {__version__}. Every figure is of the records named below it.</p>"
            + (f"<p>Records that no figure shows:</p><ul>{left}</ul>" if left else ""))
