"""The site's source as it is staged: chapters, links, the list of pages; and the newcomer's steps. No Sphinx needed."""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PICTURE = '<figure class="drawn">drawn</figure>'


@pytest.fixture(scope="module")
def site() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PEAKGEMM_SOURCE", raising=False)
        yield importlib.import_module("docs.generate.site")


@pytest.fixture(scope="module")
def staged(site: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("site") / "source"
    site.stage(to, {3: PICTURE}, simulator=False)
    return to


def test_every_chapter_has_picture_difference_counters_and_what_is_left(site: Any, staged: Path) -> None:
    chapters = [(before, kernel) for kernel, before in site.pairs() if before is not None]
    assert len(chapters) >= 17
    for before, kernel in chapters:
        text = (staged / "rungs" / f"{kernel.page}.md").read_text()
        assert f"]({kernel.page}.svg)" in text and (staged / "rungs" / f"{kernel.page}.svg").exists()
        assert f"## What changed since [rung {before.number:02}]({before.page}.md)" in text
        if kernel.patched:
            assert site.REBUILT in text
            continue
        assert kernel.path.read_text().rstrip() in text  # the kernel whole
        assert f"--- {before.path.name}" in text and re.search(r"^\+(?!\+\+).", text, re.M)
        assert ("| Nsight Compute at 4096 |" in text) != ("| simulated at 256x256x128 |" in text)
        assert re.search(r"^## What is left\n\n\S", text, re.M)
        order = [text.index(part) for part in ("**Idea.**", "## What changed", "```diff", f"]({kernel.page}.svg)",
                                               f"| rung {before.number:02} | rung {kernel.number:02} |", "## Facts",
                                               "## What is left")]
        assert order == sorted(order), kernel.label
    text = (staged / "rungs" / "03_shared_tile.md").read_text()
    assert text.index("**Measured.**") < text.index(f"```{{raw}} html\n{PICTURE}\n```") < text.index("## What changed")


def test_journals_are_called_so(staged: Path) -> None:
    pages = sorted((staged / "notebook").glob("*.md"))
    assert len(pages) > 20
    for page in [*pages, staged / "contributing" / "mechanisms.md"]:
        assert re.match(r"# .+\n\n> \*\*Journal\*\*, of November 2026", page.read_text()), page.name


def test_the_explorers_page_lists_those_of_the_site(site: Any, staged: Path) -> None:
    text = (staged / "explorer.md").read_text()
    for kernel, _ in site.pairs():
        assert f'<a href="explorer/{kernel.number:02}.html">{kernel.label}</a>' in text
    assert "All rungs on one page" in text and "explorer/simulate.html" not in text
    assert "explorer/simulate.html" in site.explored(site.pairs(), True)


def test_links_that_lead_nowhere_are_told(site: Any, tmp_path: Path) -> None:
    (tmp_path / "explorer").mkdir()
    explorer = '<script type="application/json">[{"name":"03"}]<a href="gone"></script>'
    (tmp_path / "explorer" / "03.html").write_text(explorer)
    page = tmp_path / "page.html"
    page.write_text('<a href="explorer/03.html#k=03&amp;i=1.0"> <a href="https://a.b/c"> <img src="page.html?v=1#x"> '
                    '<a href="#y">')
    assert site.dead_links(tmp_path) == []
    page.write_text('<a href="explorer/04.html"><a href="explorer/03.html#k=03&amp;k2=04"><img src="no.svg">')
    assert site.dead_links(tmp_path) == [
        "page.html: explorer/04.html", "page.html: explorer/03.html#k=03&amp;k2=04: no rung 04", "page.html: no.svg"]


def test_plots_are_drawn_for_phones_too(site: Any, tmp_path: Path) -> None:
    (tmp_path / "_images").mkdir()
    (tmp_path / "rungs").mkdir()
    page = tmp_path / "rungs" / "page.html"
    page.write_text('<img alt="a" src="../_images/ladder.svg" /> <img src="../_images/04_padded_tile.svg" />')
    site.narrow(tmp_path)
    assert page.read_text() == (
        '<picture><source media="(max-width: 640px)" srcset="../_images/narrow-ladder.svg"/>'
        '<img alt="a" src="../_images/ladder.svg" /></picture> <img src="../_images/04_padded_tile.svg" />')
    drawn = (tmp_path / "_images" / "narrow-ladder.svg").read_text()
    assert f'viewBox="0 0 {site.NARROW} ' in drawn and ">14 large tile<" in drawn


def test_what_scrolls_takes_the_focus(site: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text('<pre>a</pre><div class="table-wrapper b"></div><p class="caption" role="heading">c</p>')
    site.operable(tmp_path)
    assert page.read_text() == ('<pre tabindex="0">a</pre><div tabindex="0" class="table-wrapper b"></div>'
                                '<p class="caption" role="heading" aria-level="2">c</p>')


def test_the_chapter_of_rung_04_shows_the_conflicts_that_it_removes(staged: Path) -> None:
    text = (staged / "rungs" / "04_padded_tile.md").read_text()
    first, second = re.search(r"^\| shared wavefronts \| ([\d,]+) \| ([\d,]+) \|$", text, re.M).groups()  # type: ignore[union-attr]
    ideal = re.search(r"^\| shared wavefronts ideal \| ([\d,]+) \| ([\d,]+) \|$", text, re.M)
    assert ideal is not None and int(second.replace(",", "")) < 1.01 * int(ideal[2].replace(",", ""))
    assert int(first.replace(",", "")) > 6 * int(ideal[1].replace(",", ""))
    assert "6.1: " not in text and "03 shared tile: shared-memory wavefronts over the fewest possible 6.1" in (
        staged / "rungs" / "04_padded_tile.svg").read_text()


def test_every_page_is_listed_once(staged: Path) -> None:
    listed = [line for block in re.findall(r"```\{toctree\}\n(.*?)```", (staged / "index.md").read_text(), re.S)
              for line in block.splitlines() if line and not line.startswith(":")]
    pages = {path.relative_to(staged).with_suffix("").as_posix() for path in staged.rglob("*.md")} - {"index"}
    assert sorted(listed) == sorted(pages)


def test_links_stay_within_the_site(staged: Path) -> None:
    for page in staged.rglob("*.md"):
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
        for words, target in re.findall(r"\[([^][]*)\]\(([^)\s]+)\)", text):
            if "://" not in target and not target.startswith("#"):
                assert (page.parent / target.partition("#")[0]).is_file(), (page.name, words, target)


def test_links_out_of_the_pages(site: Any, staged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "[the tool](generate/site.py) [rules](../CONTRIBUTING.md#rules) [`x`][t]\n\n[t]: ../src/peakgemm/api.py\n"
    origin, here = Path("docs/a.md"), Path("a.md")
    assert site.relinked(text, origin, here, staged) == "the tool [rules](about/contributing.md#rules) `x`\n\n"
    monkeypatch.setenv("PEAKGEMM_SOURCE", "https://example.org/blob/main/")
    relinked = site.relinked(text, origin, here, staged)
    assert "[the tool](https://example.org/blob/main/docs/generate/site.py)" in relinked


def test_the_newcomers_steps_are_those_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    newcomer = importlib.import_module("lab.newcomer")
    found = newcomer.steps(newcomer.PAGE.read_text())
    assert [title for title, _ in found] == ["The first table", "The first page", "The first kernel of your own"]
    assert "make ladder\n" in found[0][1]
    assert found[2][1].startswith("cat > mine.cu <<'EOF'\nextern") and "peakgemm simulate mine.cu" in found[2][1]


def test_the_browsers_package_needs_numpy_alone(tmp_path: Path) -> None:
    explorer = importlib.import_module("docs.generate.explorer")
    explorer.pack(tmp_path / "packed.zip")
    with zipfile.ZipFile(tmp_path / "packed.zip") as packed:
        packed.extractall(tmp_path)
    code = """
import sys
for name in ("cuda", "torch", "typer", "rich", "platformdirs"):
    sys.modules[name] = None
import peakgemm.tools.explore.browser as found
print(found.__file__)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout.strip() == str(tmp_path / "peakgemm" / "tools" / "explore" / "browser.py"), done.stderr
