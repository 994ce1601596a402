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
from peakgemm.kernels.registry import Kernel
from peakgemm.tools.explore.kernels import problem_for

Drawing = Mapping[str, Any]


@dataclass(frozen=True)
class Picture:
    """``view``: one of `drawings.VIEWS`; ``beside``: the rung before is drawn above it; ``says``: what to look for."""

    view: str
    beside: bool
    says: str


PICTURES: dict[int, Picture] = {
    0: Picture("global", False, "Each lane of the warp reads another row of A: of each sector that is moved, one float "
                                "is used."),
    1: Picture("global", True, "The costliest load of the loop. Neighbouring lanes now read neighbouring floats of a "
                               "row of B, and all of them the same float of A."),
    2: Picture("load", True, "More arithmetic for each load: a float that is loaded is used by four results and more."),
    3: Picture("shared", False, "A warp reads one float of Bs in each lane. All of them lie in one bank."),
    4: Picture("shared", True, "The same read. With one more word in each row, the 32 words lie in 32 banks."),
    5: Picture("load", True, "Four floats a load, and the next tile is on its way while this one is multiplied."),
    6: Picture("load", True, "More arithmetic for each load from shared memory."),
    7: Picture("load", True, "More arithmetic again: 64 FMAs for each step along K."),
    8: Picture("load", True, "Where columns of As were read for four steps of K at a time, and kept, two loads a step "
                             "suffice."),
    9: Picture("shared", True, "The read of B's fragment, 16 bytes a lane: lanes that meet in a bank, and lanes side "
                               "by side."),
    10: Picture("barrier", True, "Around the barrier between two tiles: one in the place of two."),
    11: Picture("load", True, "Around loads from shared memory. In rung 10 the FMAs that follow use what was just "
                              "loaded; here they use what was loaded a step before."),
    12: Picture("shared", True, "The costliest load of the loop. Lanes share their words, so that a wavefront serves "
                                "more of them."),
    13: Picture("run", True, "Whole runs. Copies of more than one tile are on their way at a time, and no register "
                             "holds them meanwhile."),
    14: Picture("load", True, "More arithmetic for each load from shared memory: 128 FMAs for each step along K."),
    15: Picture("run", True, "Whole runs. Where all warps did everything, eight warps compute, and four others copy."),
    18: Picture("run", False, "The whole run. Two groups of warps take turns at the tensor cores; the last four load, "
                              "split and store the operands."),
}
OTHER = Picture("run", False, "The whole run.")
KEYS = {
    "shared": "A column is a bank, a row a wavefront; in a cell stands the lane whose word it is (4+: the first of "
              "several). <span class='swatch first'></span>the first wavefront <span class='swatch again'></span>one "
              "that a conflict adds",
    "global": "A row is 128 bytes of memory, a cell four of them, with the lane that reads them. "
              "<span class='swatch sector'></span>the sectors that are moved",
}
TICKS = "A tick of the timeline is an instruction of a warp, not a cycle."


def figures(traces: Mapping[int, dict[str, Any]], pairs: Sequence[tuple[Kernel, Kernel | None]]) -> dict[int, str]:
    """The picture of each rung as HTML, by its number; ``pairs``: rungs with those before them.

    Raises:
        MissingComponent: see `drawings`.
    """
    wanted: list[tuple[Kernel, Picture, list[Kernel]]] = []
    for kernel, before in pairs:
        picture = PICTURES.get(kernel.number, OTHER)
        wanted.append((kernel, picture, [before, kernel] if picture.beside and before is not None else [kernel]))
    drawn = iter(drawings([(traces[one.number], picture.view) for _, picture, shown in wanted for one in shown]))
    return {kernel.number: figure(picture, [(one, next(drawn)) for one in shown]) for kernel, picture, shown in wanted}


def figure(picture: Picture, drawn: Sequence[tuple[Kernel, Drawing]]) -> str:
    """One picture: the drawings of one rung or two, what each says in numbers, and where the explorer shows it."""
    kernel = drawn[-1][0]
    parts = [f"<p>{escape(picture.says)}</p>"]
    for one, drawing in drawn:
        marks = " ".join(f'data-{name}="{drawing[name]}"' for name in ("count", "ideal") if name in drawing)
        kind = "view" if marks else "view time"
        m, n, k = problem_for(one, ARCH)  # of each rung its own: enough for all of its stages
        said = f"<strong>{escape(one.label)}</strong>, {m} x {n} x {k}: {_said(drawing)}"
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
