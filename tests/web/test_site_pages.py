"""The site as `make docs` builds it: every page on a phone, the chapters' pictures, and the explorer behind them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
HTML = ROOT / "build" / "site" / "html"
MODULES = ROOT / "node_modules"
CHAPTER = "rungs/04_padded_tile.html"
BROKEN = "[...document.images].filter(one => one.complete && !one.naturalWidth).map(one => one.src)"
DONE = "/Done|Refused|failed/.test(document.getElementById('said').textContent)"


@pytest.fixture(scope="module")
def docs(serve: Callable[[Path], str]) -> str:
    """The address of the site, built anew."""
    if any(importlib.util.find_spec(name) is None for name in ("sphinx", "furo", "myst_parser")):
        pytest.skip("Sphinx is missing; run: make test-web")
    if not (MODULES / "pyodide").is_dir():
        pytest.skip("node_modules is missing; run: make test-web")
    done = subprocess.run([sys.executable, "-m", "docs.generate.site"], cwd=ROOT, capture_output=True, text=True,
                          check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[-2000:]
    return serve(HTML)


def views(page: Any) -> list[tuple[str | None, str | None, int, int]]:
    """Of a chapter's picture, or of an explorer's page: count, ideal, and cells drawn as first and as conflict."""
    return [(one.get_attribute("data-count"), one.get_attribute("data-ideal"), one.locator(".cell.first").count(),
             one.locator(".cell.again").count()) for one in page.locator(".drawn .view, .access").all()]


def test_rung_03s_conflicts_are_the_same_in_chapter_explorer_and_browser_simulator(open_page: Any, docs: str) -> None:
    page = open_page(f"{docs}/{CHAPTER}", scheme="dark")
    page.get_by_text("The answer, as it ran").click()
    chapter = views(page)
    assert chapter == [("32", "1", 1, 31), ("1", "1", 32, 0)]
    said = page.locator(".drawn .view p").all_inner_texts()
    assert "takes 32 wavefronts, 1 at best" in said[0] and "takes 1 wavefront, 1 at best" in said[1]
    page.get_by_role("link", name="Open these views in the explorer").click()
    page.wait_for_selector(".kernel[data-kernel='04']")
    assert page.url.split("/")[-1] == "04.html#k=03&i=62.1&w=0&l=0&k2=04&i2=62.1&w2=0&l2=0"
    assert views(page) == chapter
    assert "32 wavefronts, 1 at best" in page.locator(".kernel[data-kernel='03'] .access").inner_text()
    for name, drawn in zip(("03", "04"), chapter, strict=True):
        page = open_page(f"{docs}/explorer/simulate.html#k={name}&i=62.1&w=0&l=0")
        page.select_option("#pick", name)
        page.click("button[type=submit]")
        page.wait_for_function(DONE, timeout=90_000)
        assert page.url.endswith(f"#k={name}&i=62.1&w=0&l=0")
        assert views(page) == [drawn]


@pytest.mark.parametrize("wide", [390, 1280])
def test_every_page_fits_and_has_its_pictures(browser: Any, docs: str, wide: int) -> None:
    context = browser.new_context(viewport={"width": wide, "height": 800})
    wrong: list[str] = []
    page = context.new_page()
    page.on("console", lambda said: wrong.append(f"{page.url}: {said.text}") if said.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(f"{page.url}: {error}"))
    for path in sorted(HTML.rglob("*.html")):
        page.goto(f"{docs}/{path.relative_to(HTML).as_posix()}")
        across = page.evaluate("document.documentElement.scrollWidth")
        if across > wide:
            wrong.append(f"{page.url}: {across} pixels across")
        if "/rungs/" in page.url and page.locator(".answer figure.drawn").count() != 1:
            wrong.append(f"{page.url}: no picture")
        wrong += page.evaluate(BROKEN)
    context.close()
    assert wrong == []


def test_the_list_of_pages_shows_where_one_is(open_page: Any, docs: str) -> None:
    page = open_page(f"{docs}/glossary.html")
    assert 0 < page.locator(".sidebar-tree .current-page").bounding_box()["y"] < page.viewport_size["height"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["index.html", CHAPTER, "bench.html", "explorer/04.html", "arrays.html"])
def test_axe_finds_no_serious_fault(open_page: Any, docs: str, axe: Any, name: str, scheme: str) -> None:
    assert axe(open_page(f"{docs}/{name}", wide=390, scheme=scheme)) == []
