"""What the pages say in figures is what results/ holds."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from docs.generate.publish import Checkout
from peakgemm.tools.bench.records import runs_of

ROOT = Path(__file__).parents[2]


def pages() -> list[Path]:
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


@cache
def of_the_site() -> set[Path]:
    """Pages and pictures that are made when the site is built, and their folders."""
    made = {path for path, _ in Checkout(ROOT).site_pages()}
    return made | {path.parent for path in made}


def links(page: Path) -> list[tuple[str, str]]:
    """The words and the target of every link of a page, ``[words](target)`` or ``[words][name]``, outside of code."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    known = dict(re.findall(r"^\[([^]]+)\]: (\S+)$", text, re.M))
    named = [(words, known[name]) for words, name in re.findall(r"\[([^][]+)\]\[([^][]+)\]", text)]
    return named + re.findall(r"\[([^][]*)\]\(([^)\s]+)\)", text)


def anchors(page: Path) -> set[str]:
    """What GitHub calls a page's headings."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    """Files and headings are there, and what a link to a Python file names in code is defined in it."""
    for words, target in links(page):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists() or path in of_the_site(), f"{words}: {target}"
        assert not anchor or anchor in anchors(path), f"{words}: {target}"
        if path.suffix == ".py" and re.fullmatch(r"`\w+`", words):
            name = words.strip("`")
            assert re.search(rf"^ *(?:def|class) {name}\b|^{name}(?:: .*)? = ", path.read_text(), re.M), (words, target)


def test_a_page_without_a_file_or_heading_is_told(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for text in ("[there](gone.md)", "[there](#gone)", f"[`gone`][t]\n\n[t]: {__file__}\n"):
        page.write_text(f"# Here\n\n{text}\n")
        with pytest.raises(AssertionError):
            test_links_resolve(page)
    page.write_text(f"# Here, of `all`\n\n[there](#here-of-all) [`pages`][t]\n\n[t]: {__file__}\n")
    test_links_resolve(page)


def test_excerpts_are_of_the_sources() -> None:
    """What the guide to a new kernel quotes stands so in a file that it links to."""
    page = ROOT / "docs" / "contributing" / "add-a-kernel.md"
    sources = {line for _, target in links(page) if Path(target).suffix in (".py", ".cu")
               for line in (page.parent / target).read_text().splitlines()}
    quoted = re.findall(r"^```(?:python|cuda)\n(.*?)^```", page.read_text(), re.M | re.S)
    assert quoted
    for line in "".join(quoted).splitlines():
        assert line in sources, line


def test_what_disagrees_with_a_record_is_told_and_only_what_is_generated_is_written(tmp_path: Path) -> None:
    for name in ("README.md", "docs", "results"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    checkout = Checkout(tmp_path)
    assert not checkout.publish(check=True).failed, "run: make publish"

    def changed(name: str, shape: list[int], wanted: Callable[[dict[str, Any]], bool]) -> float:
        """A record's row, half as fast again."""
        record = checkout.load(name)
        runs = list(runs_of(record))
        row = next(row for run in runs for row in run["rungs"] if row.get("shape", run.get("shape")) == shape
                   and wanted(row))
        row |= {key: 1.5 * row[key] for key in ("tflops", "ratio_to_cublas")}
        record = {**record, "runs": runs} if "runs" in record else record
        record.pop("kernels", None)
        (checkout.results / name).write_text(json.dumps(record))
        return float(row["tflops"])

    speed = changed("bench-ieee.json", [8192] * 3, lambda row: row["suite"] == "square")
    found = checkout.publish(check=True)
    assert found.failed and found.told[1:] == ["README.md", "docs/index.md"]
    assert not checkout.publish().failed and f" {speed:.1f} " in (tmp_path / "README.md").read_text()
    assert checkout.publish().told == ["nothing was out of date"]
    page = tmp_path / "README.md"
    page.write_text(page.read_text().replace(f" {speed:.1f} ", " 99.9 "))  # typed by hand
    assert checkout.publish(check=True).told[1:] == ["README.md"]
    changed("ladder.json", [4096] * 3, lambda row: row["number"] == 14)
    kernel, line = next(iter(checkout.stale_headers()))
    before = kernel.path.read_bytes()
    for check in (False, True):
        found = checkout.publish(check)
        assert found.failed and f"{kernel.header.name} must say: {line}" in found.told
    assert kernel.path.read_bytes() == before  # no tool edits a source
