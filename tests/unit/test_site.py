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


def test_every_chapter_has_picture_difference_figures_and_what_is_left(site: Any, staged: Path) -> None:
    chapters = [(before, kernel) for kernel, before in site.pairs() if before is not None]
    assert len(chapters) >= 17
    for before, kernel in chapters:
        text = (staged / "rungs" / f"{kernel.page}.md").read_text()
        assert 'class="tiles"' in text and f"| rung {before.number:02} | rung {kernel.number:02} |" in text
        assert text.count("<details") == text.count("</details>") >= 2
        assert f"## What changed since [rung {before.number:02}]({before.page}.md)" in text
        if not kernel.patched:
            assert f"--- {before.path.name}" in text and re.search(r"^\+(?!\+\+).", text, re.M)
            assert re.search(r"^## What is left\n\n\S", text, re.M)
    assert f"</summary>{PICTURE}</details>" in (staged / "rungs" / "03_shared_tile.md").read_text()


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
    origin, page = Path("docs/a.md"), Path("a.md")
    assert site.relinked(text, origin, page, staged) == "the tool [rules](about/contributing.md#rules) `x`\n\n"
    monkeypatch.setenv("PEAKGEMM_SOURCE", "https://example.org/blob/main/")
    assert "[the tool](https://example.org/blob/main/docs/generate/site.py)" in site.relinked(text, origin, page,
                                                                                             staged)


def test_the_browsers_package_needs_numpy_alone(tmp_path: Path) -> None:
    explorer = importlib.import_module("docs.generate.explorer")
    explorer.pack(tmp_path / "packed.zip")
    with zipfile.ZipFile(tmp_path / "packed.zip") as packed:
        packed.extractall(tmp_path)
    code = """
import sys
for name in ("cuda", "torch", "typer", "rich", "platformdirs"):
    sys.modules[name] = None
import browser
print(browser.__file__)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout.strip() == str(tmp_path / "browser.py"), done.stderr
