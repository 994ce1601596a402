"""Everything that the project's pages say in figures, from ``results/`` of a checkout (`python -m docs.generate`).

Long tables are made for the site alone (`ON_THE_SITE`): in the repository a line stands where each of them is.

No source is edited. A rung's header ends with its measured figures; where they are not the record's, the line that
belongs there is told, and nothing is written, since a rung's page quotes its header. Rungs that the records do not hold
yet are left out. The same records give the same bytes: what is out of date is what differs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from docs.generate import certificates, compilers, markdown, pages, values
from docs.generate.pages import SIZE
from peakgemm.errors import InvalidValue
from peakgemm.kernels.registry import Kernel
from peakgemm.tools.bench.records import write_text
from peakgemm.tools.bench.variants import Variant
from peakgemm.tools.report.data import Data, Source, read
from peakgemm.tools.report.figures import WIDTH, figures, ratio_chart
from peakgemm.tools.report.svg import Chart

README_PLOT = "ladder.svg"  # the one picture that is kept in the repository
NO_PROGRAMS = ("Not measured yet: `python -m lab.programs --json results/h100/programs.json` writes the record that "
               "this table shows.\n")
# Tables by page and marker that the site shows and the repository does not.
ON_THE_SITE = {("docs/sweep.md", "sweep"), ("docs/tutorials.md", "configs"), ("docs/bill.md", "bill"),
               ("docs/bench.md", "bench"), ("docs/bench.md", "h200"), ("docs/bench.md", "workload"),
               ("docs/register-file.md", "registers"), ("docs/register-file.md", "loads"),
               ("docs/simulator.md", "counters"), ("docs/limits.md", "limits"), ("docs/distributed.md", "scale"),
               ("docs/distributed.md", "four"),
               ("docs/contributing/compilers.md", "compilers"), ("docs/contributing/compilers.md", "speed"),
               ("docs/accuracy.md", "accuracy"), ("docs/precisions.md", "names"),
               ("docs/precisions.md", "known"), ("docs/sass-tuning.md", "tuned"), ("docs/sass-tuning.md", "loops"),
               ("docs/reproducible.md", "reproducible"), ("docs/linalg.md", "linalg"), ("docs/programs.md", "programs"),
               ("docs/programs.md", "run"),
               ("docs/large.md", "one"), ("docs/large.md", "two"), ("docs/first-steps.md", "newcomer")}
STUB = "*The site has this table (`make docs`), from [the records](../results).*\n"
PRECISIONS = (("bench-ieee", "ieee"), ("bench-emulated", "emulated"))


@dataclass(frozen=True)
class Outcome:
    """What there is to say, and whether something is wrong."""

    told: list[str]
    failed: bool


@dataclass(frozen=True)
class Checkout:
    """A checkout whose pages are made from its records."""

    root: Path

    @property
    def results(self) -> Path:
        """The records that pages are made from."""
        return self.root / "results" / "h100"

    def load(self, name: str) -> dict[str, Any]:
        """A record."""
        return json.loads((self.results / name).read_text(encoding="utf-8"))  # type: ignore[no-any-return]

    def load_any(self, *names: str) -> list[dict[str, Any]]:
        """Those of the records that are there."""
        return [self.load(name) for name in names if (self.results / name).exists()]

    def record_at(self, name: str) -> dict[str, Any] | None:
        """A record by its path under ``results/``; None: it is not there."""
        found = self.load_any(f"../{name}")
        return found[0] if found else None

    def publish(self, check: bool = False) -> Outcome:
        """Write what is out of date, or with ``check`` only say what is."""
        headers = [f"{kernel.header.name} must say: {line}" for kernel, line in self.stale_headers()]
        stale = [(path, text) for path, text in self.outputs()
                 if not path.exists() or path.read_text(encoding="utf-8") != text]
        names = [str(path.relative_to(self.root)) for path, _ in stale]
        if check:
            old = headers or names
            return Outcome(["out of date; run: make publish", *names, *headers] if old else [], bool(old))
        if headers:
            return Outcome(headers, True)
        for path, text in stale:
            write_text(path, text)
        return Outcome([f"{name}: written" for name in names] or ["nothing was out of date"], False)

    def outputs(self, site: bool = False) -> Iterator[tuple[Path, str]]:
        """Every file of the checkout that holds figures, with its content; for the ``site`` with all tables."""
        ladder, sweep = self.load("ladder.json"), self.load("sweep.json")
        texts: dict[str, str] = {}
        for page, name, body in (
                ("docs/ladder.md", "ladder", pages.ladder_table(ladder) + "\n" + pages.caption(ladder)),
                ("docs/sweep.md", "sweep", pages.sweep_table(sweep) + "\n" + pages.caption(sweep)), *self.blocks()):
            if not site and (page, name) in ON_THE_SITE:
                body = STUB.replace("../", "../" * page.count("/"))
            texts[page] = block(texts.get(page) or (self.root / page).read_text(encoding="utf-8"), name, body)
        for path in (self.root / "README.md", *sorted((self.root / "docs").rglob("*.md"))):
            page = path.relative_to(self.root).as_posix()
            text = texts.get(page) or path.read_text(encoding="utf-8")
            if page in texts or values.MARK.search(text):
                yield path, values.fill(text, self.record_at)
        for path, draw in self.plots():
            if path.name == README_PLOT:
                yield path, draw().text(alone=True)

    def measured_rungs(self) -> list[Kernel]:
        """The rungs that have a page: those that the ladder's record holds."""
        return pages.measured_rungs(self._ladder())

    def _ladder(self) -> dict[int, Mapping[str, Any]]:
        return {r["number"]: r for r in pages.rows_at(self.load("ladder.json"), (SIZE, SIZE, SIZE))}

    def site_pages(self) -> Iterator[tuple[Path, str]]:
        """What the site has besides: a page of each rung, and the plots. None of it is kept in the repository."""
        ladder, counters = self.load("ladder.json"), self.load("counters.json")
        bills = [one for record in self.load_any("bill.json") for one in record["bills"] if "parts" in one]
        rows = self._ladder()
        for kernel in pages.measured_rungs(rows):
            counted = pages.by_shape(counters, kernel.number)
            sizes = pages.by_shape(ladder, kernel.number)
            own = [one for one in bills if one["number"] == kernel.number]
            yield (self.root / "docs" / "rungs" / f"{kernel.page}.md",
                   pages.rung_page(kernel, rows, counted, sizes, own))
        for path, draw in self.plots():
            if path.name != README_PLOT:
                yield path, draw().text(alone=True)

    def blocks(self) -> Iterator[tuple[str, str, str]]:
        """(page, marker, text) of the library's figures; a record that is not there yet leaves no figure."""
        records = self.load_any("bench-ieee.json", "bench-emulated.json", "bench-schemes.json")
        both = self.load_any("bench-ieee.json", "bench-emulated.json")
        yield "README.md", "library", markdown.overview(both) + "\n" + pages.caption(*both)
        yield "docs/bench.md", "bench", self.bench_block(records)
        yield "docs/bench.md", "workload", "\n".join(
            markdown.workload_table(record) + f"\n{record['device']['name']}. Command: `{record['command']}`.\n"
            for record in self.load_any("workload.json"))
        tiles = self.load_any("../h200/configs.json", "../h200/tutorial-tiles.json")
        if tiles:
            yield "docs/tutorials.md", "configs", markdown.configs_table(tiles) + "\n" + pages.caption(*tiles)
        if (self.root / "docs" / "programs.md").exists():
            yield "docs/programs.md", "programs", "\n".join(
                markdown.programs_table(record)
                + f"\n{(record['device'] or {'name': 'No GPU'})['name']}, torch {record['environment']['torch']}. "
                  f"Command: `{record['command']}`.\n" for record in self.load_any("programs.json")) or NO_PROGRAMS
        for record in self.load_any("../h200/run.json"):
            yield ("docs/programs.md", "run", markdown.run_table(record)
                   + f"\n{record['device']['name']}. Command: `{record['command']}`.\n")
        yield "docs/precisions.md", "known", markdown.precisions_table()
        for record in self.load_any("names.json"):
            yield ("docs/precisions.md", "names", markdown.names_table(record)
                   + f"\nMean of |C - AB| / (eps |A||B|) against FP64, in eps = 2^-23. {record['device']['name']}, "
                     f"seed {record['seed']}. Command: `{record['command']}`.\n")
        for record in self.load_any("../cpu/newcomer.json"):
            yield "docs/first-steps.md", "newcomer", markdown.newcomer_table(record)
        yield "docs/bench.md", "h200", "\n".join(
            "\n".join([markdown.suite_table([record]), pages.caption(record)])
            for record in self.load_any("../h200/bench-ieee.json"))
        for record in self.load_any("../sm_90/library-counters.json"):
            yield ("docs/simulator.md", "counters",
                   markdown.counters_table(record) + f"\nCommand: `{record['command']}`.\n")
        if found := self.load_any("compiler-speed-ieee.json", "compiler-speed-emulated.json"):
            yield ("docs/contributing/compilers.md", "speed", "\n".join(map(compilers.speed_table, found))
                   + f"\n{found[0]['device']['name']}. Command: `{found[0]['command']}`.\n")
        for record in self.load_any("../sm_90/compilers.json"):
            yield ("docs/contributing/compilers.md", "compilers",
                   compilers.compilers_table(record) + f"\nCommand: `{record['command']}`.\n")
        for record in self.load_any("limits.json"):
            yield "docs/limits.md", "limits", markdown.limits_table(record) + f"\nCommand: `{record['command']}`.\n"
        for record in self.load_any("registers.json"):
            yield "docs/register-file.md", "loads", markdown.loads_table(record)
            yield ("docs/register-file.md", "registers", markdown.registers_table(record)
                   + f"\n{record['device']['name']}, NVRTC {record['environment']['nvrtc']}. "
                     f"Command: `{record['command']}`.\n")
        for record in self.load_any("bill.json"):
            made = (f"\n{record['device']['name']}, NVRTC {record['environment']['nvrtc']}. "
                    f"Command: `{record['command']}`.\n")
            yield "docs/bill.md", "bill", markdown.bill_table(record["bills"]) + made
        for page, name, path, draw in (
                ("docs/reproducible.md", "reproducible", "reproducible-speed.json", markdown.reproducible_table),
                ("docs/jax.md", "jax", "../h200/jax.json", markdown.jax_table),
                ("docs/distributed.md", "scale", "../h200-x2/scale.json", markdown.scale_table),
                ("docs/distributed.md", "four", "../h200-x4/scale.json", markdown.scaling_table),
                ("docs/large.md", "two", "../h200-x2/scale.json", markdown.host_table),
                ("docs/large.md", "one", "../h200/host.json", markdown.host_arrays_table),
                ("docs/linalg.md", "linalg", "../h200/linalg.json", markdown.linalg_table),
                ("docs/sass-tuning.md", "tuned", "ladder.json", markdown.tuned_table),
                ("docs/sass-tuning.md", "loops", "ladder.json", markdown.loops_table)):
            for record in self.load_any(path):
                yield page, name, draw(record) + f"\n{record['device']['name']}. Command: `{record['command']}`.\n"
        accuracy = "\n".join(
            markdown.accuracy_table(record)
            + "\nLargest / mean componentwise error, in eps |A||B| against FP64, at the largest size. "
            + f"{record['device']['name']}, seed {record['seed']}. Command: `{record['command']}`.\n"
            + "\n![Error against K](accuracy.svg)\n" for record in self.load_any("accuracy.json"))
        yield "docs/accuracy.md", "accuracy", accuracy

    def bench_block(self, records: list[dict[str, Any]]) -> str:
        """docs/bench.md: every figure of the library against cuBLAS, and others' beside it."""
        others = markdown.others_table(records)
        return "\n".join([markdown.suite_table(records), markdown.square_table(records), *([others] if others else []),
                          pages.caption(*records)])

    def stale_headers(self) -> list[tuple[Kernel, str]]:
        """Rungs whose header does not say what the record holds, with the line that it lacks."""
        rows = self._ladder()
        wanted = [(kernel, pages.measured_line(rows, kernel.number)) for kernel in pages.measured_rungs(rows)]
        return [(kernel, line) for kernel, line in wanted
                if line not in kernel.header.read_text(encoding="utf-8").splitlines()]

    def plots(self, width: int = WIDTH) -> Iterator[tuple[Path, Callable[[], Chart]]]:
        """Every plot: its file, and what draws it, so many pixels wide."""
        docs = self.root / "docs"
        bench = [(name, precision) for name, precision in PRECISIONS if (self.results / f"{name}.json").exists()]
        yield docs / "ladder.svg", partial(self._figure, ["ladder.json"], "climb", width)
        for name, precision in bench:
            draw = partial(self._bench_plot, f"{name}.json", precision, width)
            yield docs / f"{name.removesuffix('-ieee')}.svg", draw
        if (self.results / "accuracy.json").exists():
            yield docs / "accuracy.svg", partial(self._figure, ["accuracy.json"], "error-long-k", width)
        for record in self.load_any("../h200/certify.json"):
            yield docs / "certificate.svg", partial(certificates.chart, record, width)

    def _figure(self, names: Sequence[str], wanted: str, width: int) -> Chart:
        for figure in figures(Data(tuple(map(self.source, names)))):
            if figure.name == wanted and figure.draw is not None:
                return figure.draw(width)
        raise InvalidValue(f"{', '.join(names)}: no figure {wanted} can be made of it")

    def _bench_plot(self, record: str, precision: str, width: int) -> Chart:
        """Of a record the rows of one precision, operands split in the time measured."""
        source = self.source(record)
        rows = [row for row in source.rows if Variant.of(row) == Variant(precision)]
        title = f"{source.record['device']['name']}, {precision}: time of cuBLAS FP32 over ours"
        return ratio_chart(rows, title, width)

    def source(self, name: str) -> Source:
        """A record as a report reads it."""
        found = read(self.results / name)
        if isinstance(found, str):
            raise InvalidValue(f"{name} holds {found}: no plot shows that")
        return found


def block(text: str, name: str, body: str) -> str:
    """``text`` with what lies between the two markers of ``name`` replaced.

    Raises:
        InvalidValue: the markers are not there.
    """
    pattern = re.compile(rf"(<!-- {name}(?::begin)? -->\n).*?(<!-- (?:{name}:end|/{name}) -->)", re.S)
    if not pattern.search(text):
        raise InvalidValue(f"marker {name} is missing")
    return pattern.sub(lambda m: m[1] + body + m[2], text)
