"""One thing has one figure: README, pictures, headers and pages agree on every rung, on the library and on cuBLAS."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from docs.generate.publish import Checkout
from peakgemm.kernels.registry import LADDER

ROOT = Path(__file__).parents[2]
Thing = tuple[str, str, str]  # what, M = N = K, unit
LIBRARY = r"^\| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$"  # a row of squares: IEEE, emulated


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """Every page as the site has it, the pictures and the headers of the rungs."""
    checkout = Checkout(ROOT)
    made = dict([*checkout.outputs(site=True), *checkout.site_pages()])
    return {path.relative_to(ROOT).as_posix(): text for path, text in made.items()} | {
        kernel.header.name: kernel.header.read_text(encoding="utf-8") for kernel in LADDER}


def figures(name: str, text: str) -> Iterator[tuple[Thing, str]]:
    """What a page says of rungs at 4096, of the library's squares, of cuBLAS."""
    rung = f"rung {name.rpartition('/')[2][:2]}"
    for number, tflops, ratio in re.findall(r"(\d\d) [\w ]+: ([\d.]+) TFLOPS, ([\d.]+) of cuBLAS", text):  # pictures
        yield (f"rung {number}", "4096", "TFLOPS"), tflops
        yield (f"rung {number}", "4096", "ratio"), ratio
    for number, tflops, ratios in re.findall(r"^\| (?:↳ )?\[(\d\d) .*?\| ([\d.]+) \| ([\d. |]+) \|$", text, re.M):
        yield (f"rung {number}", "4096", "TFLOPS"), tflops
        for size, ratio in zip(("1024", "2048", "4096", "8192"), ratios.split(" | "), strict=True):
            yield (f"rung {number}", size, "ratio"), ratio
    for size, number, tflops, ratio in re.findall(r"^\| (\d+) \| (\d\d) [\w ]+ \| ([\d.]+) \| ([\d.]+) \|", text, re.M):
        yield (f"rung {number}", size, "TFLOPS"), tflops
        yield (f"rung {number}", size, "ratio"), ratio
    for size, tflops, ratio in re.findall(r"^\| (\d+)x\1x\1 \| ([\d.]+) \| ([\d.]+) \| [\d.]+-", text, re.M):
        yield (rung, size, "TFLOPS"), tflops
        yield (rung, size, "ratio"), ratio
    for tflops, ratio in re.findall(r"Measured(?:: |\.\*\* )([\d.]+) TFLOPS at 4096 on an H100, ([\d.]+) of", text):
        yield (rung, "4096", "TFLOPS"), tflops
        yield (rung, "4096", "ratio"), ratio
    table = re.search(r"^\| M = N = K \| IEEE, TFLOPS.*?\n\n", text, re.M | re.S)
    for size, *cells in re.findall(LIBRARY, table[0] if table else "", re.M):
        for (what, unit), cell in zip((("IEEE", "TFLOPS"), ("IEEE", "ratio"), ("emulated", "TFLOPS"),
                                       ("emulated", "ratio")), cells, strict=True):
            yield (what, size, unit), cell
    for last, *others in re.findall(r"^\| cuBLAS FP32, TFLOPS \| \| ([\d.]+) \|" + 4 * r" ([\d.]+) \|", text, re.M):
        for size, cell in zip(("4096", "1024", "2048", "4096", "8192"), (last, *others), strict=True):
            yield ("cuBLAS", size, "TFLOPS"), cell
    for cell in re.findall(r"cuBLAS (\d\d\.\d)\b", text) if "svg" in name else ():
        yield ("cuBLAS", "4096", "TFLOPS"), cell


def disagreements(pages: Mapping[str, str]) -> list[str]:
    """Things of which two pages say more than roundings of one figure."""
    found: dict[Thing, dict[str, str]] = defaultdict(dict)
    for name, text in pages.items():
        for thing, said in figures(name, text):
            found[thing].setdefault(said, name)
    return [f"{' '.join(thing)}: {said}" for thing, said in found.items()
            if max(float(x) - _half(x) for x in said) > min(float(x) + _half(x) for x in said)]


def _half(figure: str) -> float:
    """Half a unit of the last digit, and what the float of it may be off."""
    return 0.5 * 10.0 ** -len(figure.partition(".")[2]) + 1e-9


def test_pages_agree(pages: dict[str, str]) -> None:
    assert disagreements(pages) == []
    told = {thing[0] for name, text in pages.items() for thing, _ in figures(name, text)}
    assert told >= {f"rung {kernel.number:02}" for kernel in LADDER} | {"IEEE", "emulated", "cuBLAS"}


@pytest.mark.parametrize(("name", "before", "after"), [
    ("README.md", r"(\| 4096 \| )[\d.]+", r"\g<1>12.3"), ("docs/ladder.svg", r"cuBLAS \d\d\.\d", "cuBLAS 46.5"),
    ("docs/ladder.md", r"(14 large tile.*?\| )5\d\.\d", r"\g<1>49.9"),
    ("docs/rungs/03_shared_tile.md", "0.033", "0.066"), ("16_sass_tuned.txt", r"Measured: [\d.]+", "Measured: 55.00")])
def test_a_figure_that_disagrees_is_told(pages: dict[str, str], name: str, before: str, after: str) -> None:
    changed = re.sub(before, after, pages[name], count=1)
    assert changed != pages[name]
    assert len(disagreements({**pages, name: changed})) == 1


def test_each_rung_of_the_main_line_is_faster_than_the_one_before(pages: dict[str, str]) -> None:
    speed = {int(thing[0][5:]): float(said) for thing, said in figures("docs/ladder.svg", pages["docs/ladder.svg"])
             if thing[0].startswith("rung") and thing[2] == "TFLOPS"}
    line = [speed[kernel.number] for kernel in LADDER if not kernel.aside and kernel.number in speed]
    assert line == sorted(set(line)) and len(line) >= 10
    for kernel in LADDER:  # a side branch is slower than a rung of the main line that comes before it, or just after it
        if kernel.aside:
            nearby = [speed[one.number] for one in LADDER if not one.aside and one.number <= kernel.number + 4]
            assert speed[kernel.number] < max(nearby), kernel.label
