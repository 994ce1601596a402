"""What the pages say in figures is what results/ holds."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from docs.generate import pages as ladder_pages
from docs.generate.publish import STUB, Checkout
from peakgemm.errors import InvalidValue
from peakgemm.tools.accuracy.cases import cases_of
from peakgemm.tools.bench.records import runs_of
from peakgemm.tools.bench.summary import summaries

ROOT = Path(__file__).parents[2]
HEAD = {"schema": 1, "command": "peakgemm bench --tested", "time": "2026-11-27", "arch": "sm_90",
        "device": {"name": "Test GPU"}, "environment": {"nvrtc": "13", "cublas": "9"}}


def test_pages_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, "-m", "docs.generate", "--check"], cwd=ROOT,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


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


@pytest.fixture
def publish(tmp_path: Path) -> Checkout:
    """Copies of the pages, and of the records that are always there."""
    for name in ("README.md", "docs/ladder.md", "docs/bench.md", "docs/accuracy.md", "docs/sweep.md",
                 "docs/sass-tuning.md"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((ROOT / name).read_text())
    found = Checkout(tmp_path)
    found.results.mkdir(parents=True)
    for name in ("ladder.json", "ladder-k1024.json", "sweep.json", "counters.json"):
        (found.results / name).write_text((ROOT / "results" / "h100" / name).read_text())
    rows = [bench_row(512, 1.2), bench_row(2048, 1.02), bench_row(8192, 1.08), bench_row(511, 0.96, "odd")]
    keep(found, "bench-ieee.json", {"rungs": rows, "suites": summaries(rows)})
    return found


def bench_row(size: int, ratio: float, suite: str = "square", **variant: Any) -> dict[str, Any]:
    return {"suite": suite, "name": f"{size}x{size}x{size}", "shape": [size] * 3, "tflops": 50 * ratio,
            "cublas_tflops": 50.0, "ratio_to_cublas": ratio, "ratio_spread": [ratio, ratio], "peers": {}, **variant}


def keep(publish: Checkout, name: str, record: dict[str, Any]) -> None:
    (publish.results / name).write_text(json.dumps({**HEAD, **record}))


def expanded(record: dict[str, Any]) -> dict[str, Any]:
    """The record with all fields in each row, so that a test may change a row."""
    return {**{key: value for key, value in record.items() if key != "kernels"}, "runs": list(runs_of(record))}


def published(publish: Checkout, page: str) -> str:
    """A page as the site has it."""
    return next(text for path, text in publish.outputs(site=True) if path == publish.root / page)


def emulated(publish: Checkout, ratio: float = 4.25) -> None:
    own = {"precision": "emulated", "prepared": False}
    rows = [bench_row(1024, 1.75, **own), bench_row(8192, ratio, **own), bench_row(511, 1.5, "odd", **own),
            bench_row(8192, 4.75, precision="emulated", prepared=True), bench_row(1024, 9.87),
            {"suite": "square", "name": "failed", "shape": [4096] * 3, "error": "no", **own}]
    keep(publish, "bench-emulated.json", {"rungs": rows, "suites": summaries(rows)})


def test_emulated_products_are_published(publish: Checkout) -> None:
    before = published(publish, "README.md")
    assert "| 8192 | 50.0 | 54.0 | 1.08 |" in before and "emulated | ratio" not in before
    assert "| 512 |" not in before and "| 512 | 50.0 | 60.0 | 1.20 |" in published(publish, "docs/bench.md")
    emulated(publish)
    readme, page = published(publish, "README.md"), published(publish, "docs/bench.md")
    assert "| 8192 | 50.0 | 54.0 | 1.08 | 212.5 | 4.25 |" in readme
    assert "| 2048 | 50.0 | 51.0 | 1.02 |  |  |" in readme  # not measured
    assert "IEEE 1.06, 0.96 at worst; emulated 2.23, 1.50 at worst.\n" in readme
    assert "| emulated | square | 3 | 2.727 | 100 % | 1.750 | 1024x1024x1024 |" in page
    assert "| 8192 | 130 | 51 | 2.55 | 212.5 | 50.0 | 4.25 |" in page
    assert "9.87" not in page + readme  # IEEE figures come from the record of IEEE arithmetic
    kept = next(text for path, text in publish.outputs() if path == publish.root / "docs" / "bench.md")
    assert f"<!-- bench:begin -->\n{STUB}<!-- bench:end -->" in kept  # long tables are the site's alone


def test_accuracy_is_published(publish: Checkout) -> None:
    def row(family: str, size: int, contender: str, largest: Any, mean: Any, test: str = "random") -> dict[str, Any]:
        return {"test": test, "family": family, "shape": [size] * 3, "contender": contender, "verdict": "pass",
                "note": None, "max_error": largest, "mean_error": mean, "rounding_max": 0.25}

    keep(publish, "accuracy.json", {"against": "cublas", "seed": 3, "rungs": cases_of([
        row("normal", 64, "peakgemm:emulated", 9.9, 9.9), row("normal", 4096, "peakgemm:emulated", 0.428, 0.0271),
        row("normal", 4096, "cublas", 3.36, 0.2), row("huge", 64, "cublas", "inf", 0.5),
        row("normal", 8192, "cublas", 7.7, 7.7, "long-k"),
        {"test": "random", "family": "normal", "shape": [4096] * 3, "contender": "gone", "verdict": "skipped"}])})
    page = publish.root / "docs" / "accuracy.md"
    page.write_text("Why.\n<!-- accuracy -->\nold\n<!-- /accuracy -->\nMore.\n")
    text = published(publish, "docs/accuracy.md")
    assert "| normal | 4096 | 3.4 / 0.2 | 0.43 / 0.027 |" in text and "| huge | 64 | inf / 0.5 |  |" in text
    assert "7.7" not in text and "9.9" not in text
    assert text.startswith("Why.\n<!-- accuracy -->\n| data") and "old" not in text
    page.write_text("no marker\n")
    with pytest.raises(InvalidValue, match="marker accuracy is missing"):
        list(publish.outputs())


def test_publishing_again_changes_nothing_until_a_record_does(publish: Checkout,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder_pages, "LADDER", ())  # the rungs' headers are the repository's own
    monkeypatch.setattr(ladder_pages, "ladder_table", lambda ladder: "")
    emulated(publish)

    def stale() -> list[str]:
        found = publish.publish(check=True)
        assert found.failed
        return found.told[1:]

    assert {"README.md", "docs/bench.md"} <= set(stale())
    assert not publish.publish().failed
    files = {path: path.read_bytes() for path in publish.root.rglob("*.*")}
    assert publish.publish(check=True).told == []
    assert publish.publish().told == ["nothing was out of date"]
    assert {path: path.read_bytes() for path in publish.root.rglob("*.*")} == files
    emulated(publish, ratio=4.5)
    assert stale() == ["README.md"]
    publish.publish()
    assert publish.publish(check=True).told == []
    page = publish.root / "README.md"
    page.write_text(page.read_text().replace("4.50", "4.60"))  # typed by hand
    assert stale() == ["README.md"]


def test_a_header_that_disagrees_with_the_record_is_told(publish: Checkout) -> None:
    assert publish.stale_headers() == []
    record = expanded(publish.load("ladder.json"))
    row = next(row for row in ladder_pages.rows_at(record, (4096, 4096, 4096)) if row["number"] == 14)
    row["tflops"] += 1
    (publish.results / "ladder.json").write_text(json.dumps(record))
    kernel, line = publish.stale_headers()[0]
    assert kernel.number == 14 and line.startswith(f"// Measured: {row['tflops']:.2f} TFLOPS at 4096 on an H100, ")
    before = kernel.path.read_bytes()
    for check in (False, True):
        found = publish.publish(check)
        assert found.failed and f"{kernel.header.name} must say: {line}" in found.told
    assert kernel.path.read_bytes() == before  # no tool edits a source
