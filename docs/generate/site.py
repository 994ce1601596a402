"""The site: the pages of docs/ staged into build/site with what is made at build time, then Sphinx.

    python -m docs.generate.site            build/site/html; a warning, or a link that leads nowhere, is an error
    python -m docs.generate.site --stage    only build/site/source, which needs no Sphinx

What is made here and lies nowhere in git: the chapters of the ladder (each rung's page with its picture from the
explorer, the difference of its source from the rung before, and the counters of both), the explorer of each rung and of
all, the report of all records, the pages of the README, the guide to contributing and the changelog, and the list of
pages. Where npm has fetched Pyodide (`make docs` has it do so where there is npm), the simulator in the browser is part
of the site. Links that lead out of the pages go to PEAKGEMM_SOURCE (the address of the repository's files) where that
is set, and are plain text otherwise. No GPU; no network but for NumPy's wheel of the browser's simulator.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from docs.generate.chapters import Shape, figures, shape_of, shown_for
from docs.generate.explorer import LINK, build_simulator, linked_trace, numpy_wheel
from docs.generate.lessons import chapter
from docs.generate.pages import SIZE, branch, rows_at
from docs.generate.publish import Checkout
from peakgemm.errors import MissingComponent
from peakgemm.kernels.registry import Kernel, rung
from peakgemm.tools.explore import page as explorer
from peakgemm.tools.report import load, write_page
from peakgemm.tools.report.data import default_folder

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "site"
PYODIDE = ROOT / "node_modules" / "pyodide"  # npm's package
CACHE = ROOT / "build" / "cache"
REPORT = "all-records.html"  # `peakgemm report`'s page
NARROW = 358  # of a plot on a phone
ABOUT = {"README.md": "about/readme.md", "CONTRIBUTING.md": "about/contributing.md",
         "CHANGELOG.md": "about/changelog.md"}
# The parts of the site and their pages, in order; what is in none comes last.
PARTS = {
    "Use": ("about/readme", "first-steps", "arrays", "torch", "jax", "linalg", "large", "distributed", "precisions",
            "reproducible", "accuracy", "certificate", "emulation", "commands", "caches"),
    "API": ("api",),
    "Learn": ("ladder", "rungs/*", "tutorials", "simulator", "explorer", "limits", "inspect", "sass", "sass-tuning",
              "register-file", "bill", "sweep", "glossary"),
    "Numbers": ("bench", "programs", "records", "measuring", "report"),
    "Contribute": ("about/contributing", "contributing/*", "notebook/README", "notebook/*", "about/changelog"),
}
JOURNAL = ("**Journal**, of November 2026: what was tried, and measured then. Raw records were kept only where an "
           "entry names one.")
Row = Mapping[str, Any]
Traces = Mapping[tuple[int, Shape], dict[str, Any]]


def stage(to: Path, pictures: Mapping[int, str], simulator: bool) -> None:
    """Write the site's source into ``to``, from scratch.

    ``pictures``: HTML for the chapters, by the rung's number; ``simulator``: whether the site has it in the browser.
    """
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(ROOT / "docs", to, ignore=shutil.ignore_patterns("_build", "generate"))
    for made, text in (*Checkout(ROOT).outputs(site=True), *Checkout(ROOT).site_pages()):
        if ROOT / "docs" not in made.parents:
            continue  # the README: copied below
        place = to / made.relative_to(ROOT / "docs")
        place.parent.mkdir(exist_ok=True)
        place.write_text(text, encoding="utf-8")
    for name, staged in ABOUT.items():
        (to / staged).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, to / staged)
    ladder = {row["number"]: row for row in rows_at(_record("ladder.json"), (SIZE,) * 3)}
    limits = {row["number"]: row for row in _record("limits.json")["found"]}
    counted, chapters = profiled(), pairs()
    for number, (kernel, before) in enumerate(chapters):
        page = to / "rungs" / f"{kernel.page}.md"
        after = chapters[number + 1][0] if number + 1 < len(chapters) else None
        page.write_text(chapter(page.read_text(encoding="utf-8"), kernel, before, after, ladder, counted,
                                limits, pictures.get(kernel.number, "")), encoding="utf-8")
    shutil.copy(explorer.WEB / "drawing.css", to / "_static" / "drawing.css")
    report = f'<p>On this site: <a href="{REPORT}">the report of all records</a>.</p>'
    for name, more in (("explorer.md", explored(chapters, simulator)), ("report.md", report)):
        title, first, rest = (to / name).read_text(encoding="utf-8").split("\n\n", 2)
        text = f"{title}\n\n{first}\n\n```{{raw}} html\n{more}\n```\n\n{rest}"
        (to / name).write_text(text, encoding="utf-8")
    for page in to.rglob("*.md"):
        here = page.relative_to(to).as_posix()
        origin = next((Path(name) for name, staged in ABOUT.items() if staged == here), Path("docs") / here)
        text = relinked(page.read_text(encoding="utf-8"), origin, Path(here), to)
        if origin.parent.name == "notebook":
            text = re.sub(r"\A(# .+\n)", rf"\1\n> {JOURNAL}\n", text)
        page.write_text(text, encoding="utf-8")
    index = to / "index.md"
    index.write_text(index.read_text(encoding="utf-8") + contents(to), encoding="utf-8")


def pairs() -> list[tuple[Kernel, Kernel | None]]:
    """The rungs that have a page, each with the one that it is compared with: the rung before, or its source."""
    rungs = Checkout(ROOT).measured_rungs()
    found = []
    for place, kernel in enumerate(rungs):
        source = next((one for one in rungs if kernel.patched and not one.patched and one.entry == kernel.entry), None)
        found.append((kernel, source or (rungs[place - 1] if place else None)))
    return found


def profiled() -> dict[int, Row]:
    """The profiler's counters of each rung; of several configurations the first, which is the default."""
    return {row["number"]: row["ncu"] for row in reversed(rows_at(_record("counters.json"), (SIZE,) * 3))}


def _record(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "results" / "h100" / name).read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def relinked(text: str, origin: Path, here: Path, to: Path) -> str:
    """A page's links, which name files from ``origin`` in the repository, as they are from ``here`` on the site."""
    def target(match: re.Match[str]) -> str:
        words, link = match[1], match[2]
        if "://" in link or link.startswith(("#", "mailto:")):
            return match[0]
        file, mark, anchor = link.partition("#")
        path = Path(os.path.normpath(origin.parent / file))
        known = path.as_posix()
        if (ROOT / path).is_dir():
            known = f"{known}/README.md"
        if known in ABOUT:
            staged = Path(ABOUT[known])
        elif known.startswith("docs/") and (to / known[5:]).is_file() and known.endswith((".md", ".svg")):
            staged = Path(known).relative_to("docs")
        else:
            base = os.environ.get("PEAKGEMM_SOURCE", "").rstrip("/")
            return f"[{words}]({base}/{path.as_posix()})" if base else words
        return f"[{words}]({os.path.relpath(staged, here.parent)}{mark}{anchor})"

    named = dict(re.findall(r"^\[([^]^]+)\]: (\S+)$", text, re.M))
    pieces = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)
    for place in range(0, len(pieces), 2):
        piece = re.sub(r"\[([^][]+)\]\[([^][]+)\]", lambda m: f"[{m[1]}]({named[m[2]]})" if m[2] in named else m[0],
                       pieces[place])
        piece = re.sub(r"^\[[^]^]+\]: \S+\n?", "", piece, flags=re.M) if named else piece
        pieces[place] = re.sub(r"\[((?:[^][]|\[[^][]*\])*)\]\(([^)\s]+)\)", target, piece)
    return "".join(pieces)


def contents(to: Path) -> str:
    """Lists of pages by part; a page that no part names comes last, so that none is lost."""
    pages = sorted(path.relative_to(to).with_suffix("").as_posix() for path in to.rglob("*.md"))
    left = [page for page in pages if page != "index"]
    parts = []
    for title, patterns in PARTS.items():
        found = []
        for pattern in patterns:
            found += [page for page in left if Path(page).match(pattern) and page.count("/") == pattern.count("/")
                      and page not in found]
        left = [page for page in left if page not in found]
        parts.append((title, found))
    if left:
        parts.append(("More", left))
    return "".join("\n```{toctree}\n:hidden:\n:caption: " + title + "\n\n" + "\n".join(found) + "\n```\n"
                   for title, found in parts if found)


def explored(chapters: Sequence[tuple[Kernel, Kernel | None]], simulator: bool) -> str:
    """What the explorer's page says on the site: where the explorers of the rungs are."""
    rungs = ", ".join(f'{branch(kernel)}<a href="explorer/{kernel.number:02}.html">{kernel.label}</a>'
                      for kernel, _ in chapters)
    own = ', <a href="explorer/simulate.html">the simulator in the browser</a>' if simulator else ""
    return (f"<p>On this site, each rung beside the one before: {rungs}. "
            f'<a href="explorer/index.html">All rungs on one page</a>, some 10 MB{own}.</p>')


def reported(to: Path) -> None:
    """Write the report of the fullest folder of records to ``to``."""
    write_page(to, load([default_folder(ROOT)]))


def able() -> bool:
    """Whether the simulator in the browser can be part of the site; if not, says why."""
    lock = PYODIDE / "pyodide-lock.json"
    try:
        if not lock.is_file():
            raise MissingComponent("npm has not fetched Pyodide; run: npm ci")
        numpy_wheel(json.loads(lock.read_text(encoding="utf-8")), CACHE)
    except MissingComponent as error:
        print(f"left out, the simulator in the browser: {error}")
        return False
    return True


def explorers(to: Path, traces: Traces, simulator: bool) -> None:
    """Write the explorer's pages into ``to``: NN.html of each rung and the one before on one problem, index.html of
    all."""
    about = explorer.ABOUT + (LINK if simulator else "")
    own = []
    for kernel, before in pairs():
        shown = shown_for(kernel, before)
        found = [traces[one.number, shape_of(*shown)] for one in shown]
        own.append(found[-1])
        back = f' <a href="../rungs/{kernel.page}.html">The chapter of rung {kernel.number:02}</a>.'
        explorer.write(to / f"{kernel.number:02}.html",
                       explorer.page(found, f"peakgemm explorer: {kernel.label}", about + back))
    back = ' <a href="../ladder.html">The ladder</a>.'
    explorer.write(to / "index.html", explorer.page(own, about=about + back))
    if simulator:
        build_simulator(to, PYODIDE, CACHE)


def traced(chapters: Sequence[tuple[Kernel, Kernel | None]]) -> Traces:
    """The traces that pictures and explorers show, by rung and problem."""
    wanted = sorted({(one.number, shape_of(*shown)) for pair in chapters
                     for shown in [shown_for(*pair)] for one in shown}, reverse=True)
    with ProcessPoolExecutor(min(os.cpu_count() or 1, len(wanted))) as pool:
        return dict(zip(wanted, pool.map(_trace, wanted), strict=True))


def _trace(wanted: tuple[int, Shape]) -> dict[str, Any]:
    number, shape = wanted
    return linked_trace(rung(number), shape)


def operable(html: Path) -> None:
    """What Sphinx's pages lack for keyboards and screen readers: parts that scroll take the focus, captions a level."""
    for path in html.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        for before, after in (("<pre>", '<pre tabindex="0">'),
                              ('<div class="table-wrapper', '<div tabindex="0" class="table-wrapper'),
                              ('class="caption" role="heading"', 'class="caption" role="heading" aria-level="2"')):
            text = text.replace(before, after)
        path.write_text(text, encoding="utf-8")


def narrow(html: Path) -> None:
    """Plots drawn anew for phones, which the pages show where the screen is narrow."""
    drawn = {path.name: draw for path, draw in Checkout(ROOT).plots(NARROW)}
    for name, draw in drawn.items():
        (html / "_images" / f"narrow-{name}").write_text(draw().text(alone=True), encoding="utf-8")

    def both(match: re.Match[str]) -> str:
        if match[2] not in drawn:
            return match[0]
        return f'<picture><source media="(max-width: 640px)" srcset="{match[1]}narrow-{match[2]}"/>{match[0]}</picture>'

    for path in html.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        path.write_text(re.sub(r'<img [^>]*src="([^"]*_images/)([^"/]+)"[^>]*/>', both, text), encoding="utf-8")


def dead_links(html: Path) -> list[str]:
    """Links and pictures of the built pages that lead to no file, or to a rung that an explorer does not hold."""
    found = []
    held: dict[Path, str] = {}
    for path in sorted(html.rglob("*.html")):
        text = path.read_text(encoding="utf-8").partition('<script type="application/json"')[0]
        for link in re.findall(r'(?:href|src|srcset)="([^"]+)"', text):
            file, _, mark = unescape(link).partition("#")
            if re.match(r"[a-z]+:", file):
                continue
            target = (path.parent / unquote(file.partition("?")[0])).resolve() if file else path.resolve()
            if not target.is_file():
                found.append(f"{path.relative_to(html)}: {link}")
            elif target.parent.name == "explorer" and mark:
                known = held.setdefault(target, target.read_text(encoding="utf-8"))
                found += [f"{path.relative_to(html)}: {link}: no rung {number}"
                          for number in re.findall(r"\bk2?=(\d+)", mark) if f'"name":"{number}"' not in known]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", action="store_true", help="write build/site/source, build nothing")
    args = parser.parse_args()
    chapters = pairs()
    traces = traced(chapters)
    simulator = able()
    stage(BUILD / "source", figures(traces, chapters), simulator)
    if args.stage:
        return
    html = BUILD / "html"
    shutil.rmtree(html, ignore_errors=True)
    done = subprocess.run([sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-j", "2", "-d",
                           str(BUILD / "doctrees"), str(BUILD / "source"), str(html)], check=False)
    if done.returncode:
        sys.exit(done.returncode)
    operable(html)
    narrow(html)
    explorers(html / "explorer", traces, simulator)
    reported(html / REPORT)
    dead = dead_links(html)
    if dead:
        sys.exit("links that lead nowhere:\n" + "\n".join(dead))


if __name__ == "__main__":
    main()
