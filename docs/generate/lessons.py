"""A rung's page as a lesson: idea, tiles, a question and its picture, the kernel with notes, what changed.

What is said of each rung lies in lessons.json: ``view`` and ``beside`` (`chapters.Picture`), the question ``ask`` and
what ``says`` the picture, ``notes`` as pairs of the words with which a line of the source begins to be spoken of and
what is said, and in ``also`` a header that holds the rung's main loop.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from docs.generate.limited import limited
from docs.generate.markdown import grid
from docs.generate.pages import SIZE, folded
from docs.generate.tiles import picture
from peakgemm.errors import InvalidValue
from peakgemm.kernels.registry import LADDER, Kernel
from peakgemm.runtime.source import KERNELS
from peakgemm.tools.exercise import EXERCISES

Row = Mapping[str, Any]
LESSONS: dict[int, dict[str, Any]] = {
    int(number): lesson
    for number, lesson in json.loads(Path(__file__).with_name("lessons.json").read_text(encoding="utf-8")).items()}
REBUILT = "The source is the same: the main loop of its cubin is [rebuilt](../sass-tuning.md)."
LONG = 60  # lines of a difference: longer ones are folded


def chapter(page: str, kernel: Kernel, before: Kernel | None, after: Kernel | None, ladder: Mapping[int, Row],
            counted: Mapping[int, Row], limits: Mapping[int, Row], explored: str) -> str:
    """A rung's ``page`` (`pages.rung_page`) as a lesson; ``explored``: the explorer's picture as HTML, or nothing."""
    head, figures, rest = page.partition("\n## Figures")
    head, leaves = re.sub(r"\n\*\*Leaves\.\*\* (.+)\n", "", head), re.search(r"^\*\*Leaves\.\*\* (.+)$", head, re.M)
    parts = [head, f"\n{place(kernel, ladder)}\n", "\n## The tiles\n", raw(tiles(kernel))]
    lesson = LESSONS.get(kernel.number, {})
    if explored:
        parts.append("\n## A question\n")
        parts.append(f"\n{lesson['ask']}\n" if "ask" in lesson else "")
        parts.append(raw(f'<details class="answer"><summary>The answer, as it ran</summary>{explored}</details>'))
    if kernel.number in EXERCISES:
        words = f"peakgemm exercise {kernel.number:02}"
        parts.append(f"\n## Exercise\n\n{EXERCISES[kernel.number].task}\n\n```sh\n"
                     f"{words}            # writes the file\n"
                     f"{words} --check    # runs it in the simulator, says what is still wrong\n```\n\n"
                     "The solution follows.\n")
    if not kernel.patched:
        parts.append(f"\n## The kernel\n{annotated(kernel, lesson)}")
    if before is not None:
        parts.append(f"\n## What changed since [rung {before.number:02}]({before.page}.md)\n")
        changed = difference(before, kernel)
        diff = f"\n```diff\n{changed}```\n" if changed else f"\n{REBUILT}\n"
        parts.append(folded(f"{changed.count(chr(10))} lines", diff) if changed.count("\n") > LONG else diff)
        parts.append("\n" + changes(before, kernel, ladder, counted))
    if kernel.number in limits:
        both = [(one, limits[one.number]) for one in (before, kernel) if one is not None and one.number in limits]
        parts.append(f"\n## What limits it\n{raw(limited(both))}")
    parts.append(figures + rest)
    parts.append(f"\n## What is left\n\n{leaves[1] if leaves else ''}\n")
    if after is not None:
        parts.append(f"\nNext: [{after.label}]({after.page}.md), {after.idea}.\n")
    return "---\nhide-toc: true\n---\n" + "".join(parts)


def raw(html: str) -> str:
    """HTML within Markdown."""
    return f"\n```{{raw}} html\n{html}\n```\n"


def place(kernel: Kernel, ladder: Mapping[int, Row]) -> str:
    """Where a rung stands: on the main line, with its gain over the rung before there, or beside it, and why."""
    if kernel.aside:
        return f"**Side branch.** {kernel.aside[0].upper()}{kernel.aside[1:]}."
    line = [one for one in LADDER if not one.aside and one.number in ladder and one.number < kernel.number]
    if not line:
        return "**Main line.** It begins here."
    gain = ladder[kernel.number]["tflops"] / ladder[line[-1].number]["tflops"]
    last = line[-1]
    return f"**Main line.** {gain:.2f} times the speed of the rung before on it, [{last.label}]({last.page}.md)."


def tiles(kernel: Kernel) -> str:
    """The picture of the tiles, with its key."""
    config = kernel.config_for("sm_90")
    return ('<figure class="drawn"><div class="scrolls" role="region" aria-label="Tiles" tabindex="0">'
            f'{picture(kernel)}</div><figcaption>A block walks along K in steps of {config.bk}: '
            '<span class="swatch slab"></span>what it holds of A and B at a time, <span class="swatch mine"></span>'
            "its tile of C. In the other panels the marked part is warp 0's, and in that lane 0's, as a run stored "
            "them.</figcaption></figure>")


def annotated(kernel: Kernel, lesson: Mapping[str, Any]) -> str:
    """The whole source, without its header comment, in parts with the note of each beside it.

    Raises:
        InvalidValue: a note's words are not in the source, or not in the order of the notes.
    """
    files = [kernel.path, *([KERNELS / lesson["also"]] if "also" in lesson else [])]
    text = "\n".join(source(path) for path in files)
    places, at = [], 0
    for words, _ in lesson.get("notes", []):
        found = text.find(words, at)
        if found < 0:
            raise InvalidValue(f"lessons.json, rung {kernel.number:02}: no {words!r} behind the note before")
        start = text.rfind("\n", 0, found) + 1
        while (above := text[text.rfind("\n", 0, start - 1) + 1:start]).lstrip().startswith(("#pragma", "//")):
            start -= len(above)
        places.append(start)
        at = found + 1
    ends = [*places[1:], len(text)] if places else [len(text)]
    notes = [note for _, note in lesson.get("notes", [])] or [""]
    parts = []
    for start, end, note in zip(places or [0], ends, notes, strict=True):
        parts.append(raw(f'<div class="step"><aside>{escape(note)}</aside>')
                     + f"\n```{{code-block}} cuda\n:force:\n\n{text[start:end].strip(chr(10))}\n```\n" + raw("</div>"))
    return "".join(parts)


def source(path: Path) -> str:
    """A source without its leading comment."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(lines[next((i for i, line in enumerate(lines) if not line.startswith("//")), 0):])


def difference(before: Kernel, kernel: Kernel) -> str:
    """The unified difference of two sources, without their header comments, which the chapter tells."""
    old, new = (source(one.path).splitlines(keepends=True) for one in (before, kernel))
    return "".join(difflib.unified_diff(old, new, before.path.name, kernel.path.name, n=2))


def changes(before: Kernel, kernel: Kernel, ladder: Mapping[int, Row], counted: Mapping[int, Row]) -> str:
    """What the step changed: measures of both rungs side by side."""
    pair = [{**counted.get(one.number, {}), **ladder[one.number]} for one in (before, kernel)]
    for row, one in zip(pair, (before, kernel), strict=True):
        ncu = counted.get(one.number, {})
        row["excess"] = ncu["shared_wavefronts"] / ncu["shared_wavefronts_ideal"] if ncu.get(
            "shared_wavefronts_ideal") else None
        row["wavefronts"] = ncu.get("shared_wavefronts")
    rows = []
    for label, key, scale, form in (
            ("TFLOPS", "tflops", 1, ".1f"), ("of cuBLAS", "ratio_to_cublas", 1, ".3f"),
            ("FFMA of the main loop, %", "ffma_fraction", 100, ".0f"),
            ("FFMA pipe busy, %", "ffma_pipe_percent", 1, ".0f"), ("registers a thread", "registers", 1, ".0f"),
            ("blocks per SM", "blocks_per_sm", 1, ".0f"),
            ("bytes asked of global memory, a FLOP", "bytes_per_flop", 1, ".3g"),
            ("shared-memory wavefronts, millions", "wavefronts", 1e-6, ",.0f"),
            ("over the fewest possible", "excess", 1, ".1f"), ("bytes of DRAM, GB", "dram_bytes", 1e-9, ".2f")):
        cells = [format(scale * row[key], form) if row.get(key) is not None else "-" for row in pair]
        if set(cells) - {"-", format(0.0, form)}:
            rows.append((label, *cells))
    return grid((f"at {SIZE} on an H100", f"rung {before.number:02}", f"rung {kernel.number:02}"), rows)

