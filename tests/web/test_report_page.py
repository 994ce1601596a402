"""The report in a browser: no console error, tables that sort, both themes, a phone's width, accessibility."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from peakgemm.tools.report import load, write_page

H100 = Path(__file__).parents[2] / "results" / "h100"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_page(path, load([H100]))
    return path.as_uri()


@pytest.fixture(params=[("light", 1100), ("dark", 1100), ("light", 390), ("dark", 390)],
                ids=lambda p: f"{p[0]}-{p[1]}")
def opened(request: Any, browser: Any, report: str) -> Iterator[Any]:
    scheme, width = request.param
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
    page = context.new_page()
    page.said = []
    page.on("console", lambda message: page.said.append(message.text))
    page.on("pageerror", lambda error: page.said.append(str(error)))
    page.on("request", lambda asked: page.said.append(asked.url) if not asked.url.startswith(("file:", "data:")) else 0)
    page.goto(report)
    yield page
    assert page.said == []
    context.close()


def test_it_fits_the_screen(opened: Any) -> None:
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")
    narrow = opened.viewport_size["width"] < 700
    assert opened.locator("#climb .narrow svg").is_visible() == narrow
    assert opened.locator("#climb .wide svg").is_visible() != narrow
    small = opened.evaluate("""[...document.querySelectorAll('svg text')].filter(t => t.getClientRects().length)
        .map(t => t.getBoundingClientRect().height).filter(h => h > 0 && h < 11).length""")
    assert small == 0  # letters of 11 pixels and more, also on a phone


def test_the_theme_follows_the_system_and_the_button(opened: Any) -> None:
    def ground() -> str:
        return str(opened.evaluate("getComputedStyle(document.body).backgroundColor"))

    light, dark = "rgb(255, 255, 255)", "rgb(20, 23, 28)"
    system = opened.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    assert ground() == (dark if system else light)
    opened.click("#theme")
    assert ground() == (light if system else dark)


def test_tables_sort(opened: Any) -> None:
    head = opened.locator("#facts th", has_text="TFLOPS")
    place = head.evaluate("cell => cell.cellIndex")

    def column() -> list[float]:
        return [float(text) for text in opened.locator(f"#facts tbody td:nth-child({place + 1})").all_inner_texts()]

    before = column()
    head.locator("button").click()
    assert column() == sorted(before) and head.get_attribute("aria-sort") == "ascending"
    head.locator("button").click()
    assert column() == sorted(before, reverse=True) and head.get_attribute("aria-sort") == "descending"


@pytest.mark.parametrize("opened", [("light", 1100), ("dark", 390)], indirect=True, ids=["light", "dark-390"])
def test_axe_finds_no_serious_fault(opened: Any, tmp_path: Path) -> None:
    """Of every kind of figure one: axe takes a minute for all rows of all records."""
    names = ("ladder.json", "sweep.json", "bench-cutlass.json", "accuracy.json", "counters.json")
    write_page(tmp_path / "small.html", load([H100 / name for name in names]))
    opened.goto((tmp_path / "small.html").as_uri())
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
    opened.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    found = [f"{fault['id']}: {fault['nodes'][0]['html'][:200]}" for fault in
             axe.Axe().run(opened).response["violations"] if fault["impact"] in ("serious", "critical")]
    assert found == []
