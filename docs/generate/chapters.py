"""The pictures of the ladder's chapters: which of the explorer's views shows a rung's idea, drawn, with its numbers.

A picture is HTML with the explorer's SVG in it; its style is web/drawing.css. Every number of a caption is the trace's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from docs.generate.drawings import drawings
from docs.generate.explorer import ARCH
from docs.generate.lessons import LESSONS
from peakgemm.kernels.registry import Kernel
from peakgemm.tools.explore.kernels import problem_for

Drawing = Mapping[str, Any]
Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Picture:
    """``view``: one of `drawings.VIEWS`; ``beside``: the rung before is drawn above it; ``says``: what to look for."""

    view: str
    beside: bool
    says: str


PICTURES = {number: Picture(lesson["view"], lesson["beside"], lesson["says"]) for number, lesson in LESSONS.items()}
OTHER = Picture("run", False, "The whole run.")
KEYS = {
    "shared": "A column is a bank, a row a wavefront; in a cell stands the lane whose word it is (4+: the first of "
              "several). <span class='swatch first'></span>the first wavefront <span class='swatch again'></span>one "
              "that a conflict adds",
    "global": "A row is 128 bytes of memory, a cell four of them, with the lane that reads them. "
              "<span class='swatch sector'></span>the sectors that are moved",
}
TICKS = "A tick of the timeline is an instruction of a warp, not a cycle."


def shape_of(*shown: Kernel) -> Shape:
    """The problem that rungs are shown on side by side: the same for all, and enough for each."""
    m, n, k = (max(sizes) for sizes in zip(*(problem_for(kernel, ARCH) for kernel in shown), strict=True))
    return m, n, k


def shown_for(kernel: Kernel, before: Kernel | None) -> list[Kernel]:
    """The rungs of a chapter's explorer, the one of the chapter last."""
    return [kernel] if before is None else [before, kernel]


def figures(traces: Mapping[tuple[int, Shape], dict[str, Any]], pairs: Sequence[tuple[Kernel, Kernel | None]]
            ) -> dict[int, str]:
    """The picture of each rung as HTML, by its number; ``pairs``: rungs with those before them, ``traces`` by rung and
    problem.

    Raises:
        MissingComponent: see `drawings`.
    """
    wanted: list[tuple[Kernel, Picture, list[Kernel], Shape]] = []
    for kernel, before in pairs:
        picture, both = PICTURES.get(kernel.number, OTHER), shown_for(kernel, before)
        wanted.append((kernel, picture, both if picture.beside else [kernel], shape_of(*both)))
    drawn = iter(drawings([(traces[one.number, shape], picture.view)
                           for _, picture, shown, shape in wanted for one in shown]))
    return {kernel.number: figure(picture, shape, [(one, next(drawn)) for one in shown])
            for kernel, picture, shown, shape in wanted}


def figure(picture: Picture, shape: Shape, drawn: Sequence[tuple[Kernel, Drawing]]) -> str:
    """One picture: the drawings of one rung or two, what each says in numbers, and where the explorer shows it."""
    kernel = drawn[-1][0]
    parts = [f"<p>{escape(picture.says)}</p>"]
    for one, drawing in drawn:
        marks = " ".join(f'data-{name}="{drawing[name]}"' for name in ("count", "ideal") if name in drawing)
        kind = "view" if marks else "view time"
        said = f"<strong>{escape(one.label)}</strong>, {' x '.join(map(str, shape))}: {_said(drawing)}"
        parts.append(f'<div class="{kind}" data-kernel="{one.number:02}" {marks}><p>{said}</p>{drawing["svg"]}</div>')
    if picture.view not in KEYS:
        parts.append(table(drawn))
    parts.append(f'<p class="key">{KEYS.get(picture.view, TICKS)}</p>')
    what = "these views" if len(drawn) > 1 else "this view"
    parts.append(f'<figcaption><a href="../explorer/{kernel.number:02}.html{address([one for _, one in drawn])}">Open '
                 f"{what} in the explorer</a>, drawn from the same run.</figcaption>")
    return f'<figure class="drawn">{"".join(parts)}</figure>'


def address(drawn: Sequence[Drawing]) -> str:
    """The fragment of the explorer's URL that shows one view, or two side by side."""
    places = [one["fragment"].removeprefix("#").removesuffix("&v=timeline") for one in drawn]
    places[1:] = [re.sub(r"(\w)=", r"\g<1>2=", place) for place in places[1:]]
    part = "&v=timeline" if drawn[0]["fragment"].endswith("&v=timeline") else ""
    return escape(f"#{'&'.join(places)}{part}")


def table(drawn: Sequence[tuple[Kernel, Drawing]]) -> str:
    """The key of timelines: each colour with the instructions of that kind, of a warp of each track."""
    tracks = [(len(drawing["tracks"]) > 1, kernel, track) for kernel, drawing in drawn for track in drawing["tracks"]]
    heads = "".join(f'<th scope="col">{kernel.number:02}{_warps(track["warps"]) if several else ""}</th>'
                    for several, kernel, track in tracks)
    rows = [(name, what, [track["kinds"][name] for *_, track in tracks])
            for name, what in drawn[0][1]["names"].items()]
    rows.append(("flight", "in flight, ticks", [track["inFlight"] for *_, track in tracks]))
    body = "".join(f'<tr><th scope="row"><span class="swatch {name}"></span>{what}</th>'
                   + "".join(f"<td>{'-' if value is None else f'{value:,}'}</td>" for value in values) + "</tr>"
                   for name, what, values in rows if any(values))
    return ('<div class="scrolls" role="region" aria-label="Instructions by kind" tabindex="0"><table><thead><tr>'
            f'<th scope="col">instructions of a warp</th>{heads}</tr></thead><tbody>{body}</tbody></table></div>')


def _warps(numbers: Sequence[int]) -> str:
    run = list(numbers) == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 2
    return f", warp{'s' * (len(numbers) > 1)} " + (f"{numbers[0]} to {numbers[-1]}" if run else
                                                   ", ".join(map(str, numbers)))


def _said(drawing: Drawing) -> str:
    """What a drawing shows, in a sentence."""
    if "count" in drawing:
        unit = "wavefront" if drawing["space"] == "shared" else "sector"
        name = next(word for word in drawing["instruction"].split() if not word.startswith("@"))
        takes = f"{drawing['count']} {unit}{'s' * (drawing['count'] != 1)}"
        return (f"<code>{escape(name)}</code> at {escape(drawing['where'])} takes <strong>{takes}</strong>, "
                f"{drawing['ideal']} at best. {escape(drawing['said'])}")
    if (drawing["from"], drawing["to"]) == (0, drawing["end"]):
        return f"the whole run, {drawing['end']:,} ticks"
    return f"ticks {drawing['from']:,} to {drawing['to']:,} of {drawing['end']:,}"
