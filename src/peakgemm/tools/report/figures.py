"""Which figures a page shows, from which records, with the command and the conditions of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from statistics import geometric_mean, median
from typing import Any

from ...kernels.registry import LADDER
from ..bench.columns import rung_name
from ..bench.variants import IEEE, Variant
from . import charts
from .data import Data, Row, Source
from .svg import Chart
from .tables import Table, bench_table, facts_table, sweep_table

WIDTH = 860  # of a figure on a desk
LIBRARY = {"IEEE": "s6 bold dash", "emulated": "s6 bold"}  # others: in one colour, beneath
MOST_OPEN = 40  # products of a chart of ratios: with more it is folded
DRAWN = "drawn"  # the suite of such
BEST_SIZE = 4096  # of the ladder's pictures, where it was measured


@dataclass(frozen=True)
class Figure:
    """A part of the page: what it shows, drawn at any width, its table, and where its numbers come from."""

    name: str
    title: str
    text: str
    sources: tuple[Source, ...]
    draw: Callable[[int], Chart] | None = None
    table: Table | None = None
    folded: bool = False  # the chart, or a table without one


def peak_tflops(device: Mapping[str, Any]) -> float:
    """FP32 peak at the GPU's highest clock: 128 FMAs a clock and SM, two operations each."""
    return float(device["sm_count"] * 128 * 2 * device["clock_mhz"] * 1e6 / 1e12)


def conditions(source: Source) -> str:
    """GPU, versions, clocks and power of a record, in one line."""
    record, rows = source.record, [row for row in source.rows if row.get("sm_clock_mhz")]
    gpu, env = record["device"], record["environment"]
    said = [gpu["name"] + f", driver {gpu['driver']}" if gpu else "no GPU: facts and simulated counts"]
    said.append(str(record["time"]).partition("T")[0])
    compiler = "cubins" if "cubins" in env else "nvrtc"
    said += [f"{what} {env[key]}" for what, key in (("NVRTC", compiler), ("cuBLAS", "cublas"), ("torch", "torch"))
             if env.get(key)]
    if rows:
        clocks, watts = ([row[key] for row in rows if row.get(key)] for key in ("sm_clock_mhz", "power_w"))
        said.append(f"SM clock {min(clocks):.0f}-{max(clocks):.0f} MHz, median {median(clocks):.0f}")
        if watts:
            said.append(f"power {min(watts):.0f}-{max(watts):.0f} W")
    if any("ratio_spread" in row for row in rows):
        said.append("random normal data, medians of interleaved pairs with cuBLAS FP32, spread 10-90 %")
    return "; ".join(said)


def figures(data: Data) -> Iterator[Figure]:
    """Every figure that the records allow, in the order of the page."""
    for part in (_summary, _climb, _speed, _ratios, _roofline, _sweep, _errors, _facts, _others):
        yield from part(data)


def timed(rows: Sequence[Row]) -> list[Row]:
    """Rows with a measured speed."""
    return [row for row in rows if row.get("tflops")]


def benches(data: Data) -> list[Source]:
    """Records of `peakgemm bench`, first the one with the most timed rows."""
    return sorted((source for source in data.of("bench") if timed(source.rows)),
                  key=lambda source: -len(timed(source.rows)))


SQUARES = ("square", "layouts")  # the suites whose squares stand beside the ladder's


def _library(data: Data) -> dict[str, dict[int, tuple[Row, Source]]]:
    """The library's square products and its peers', by label and size, each from the first record that has it."""
    lines: dict[str, dict[int, tuple[Row, Source]]] = {}
    for source in benches(data):
        for row in timed(source.rows):
            variant, size = Variant.of(row), row["shape"][0]
            plain = row.get("layout", "NN") == "NN" and row.get("batch", 1) == 1 and not variant.prepared
            if row["suite"] in SQUARES and len(set(row["shape"])) == 1 and plain:
                label = "IEEE" if variant == IEEE else variant.label
                for name, one in ((label, row), *row.get("peers", {}).items()):
                    if one.get("tflops"):
                        lines.setdefault(name, {}).setdefault(size, (one, source))
    return lines


def squares(source: Source) -> list[tuple[int, list[Row]]]:
    """The square shapes of a ladder record, by size."""
    return sorted(((shape[0], timed(rows)) for shape, rows in source.runs() if len(set(shape)) == 1 and timed(rows)),
                  key=lambda one: one[0])


def ladder_at(data: Data) -> tuple[Source, int, list[Row]] | None:
    """The ladder at the square of its pictures, where one was timed: the record, the size, the rows."""
    runs = [(size == BEST_SIZE, size, place, source, rows) for place, source in enumerate(data.of("ladder"))
             for size, rows in squares(source)]
    if not runs or not data.device:
        return None
    _, size, _, source, rows = max(runs, key=lambda one: (one[0], one[1], -one[2]))
    return source, size, rows


def _summary(data: Data) -> Iterator[Figure]:
    """Of every record of the library's products one line for each variant."""
    rows, sources = [], sorted(benches(data), key=_is_drawn)
    for source in sources:
        found: dict[Variant, list[Row]] = {}
        for row in _by_variant(source.rows):
            found.setdefault(Variant.of(row), []).append(row)
        for variant, own in found.items():
            ratios = [float(row["ratio_to_cublas"]) for row in own]
            worst = min(own, key=lambda row: float(row["ratio_to_cublas"]))
            suites = list(dict.fromkeys(str(row["suite"]) for row in own))
            rows.append({"precision": "IEEE" if variant == IEEE else variant.label,
                         "suites": ", ".join(suites) if len(suites) <= 3 else f"{len(suites)} suites",
                         "products": len(own), "geometric mean": geometric_mean(ratios),
                         "as fast as cuBLAS or faster, %": 100 * sum(ratio >= 1 for ratio in ratios) / len(own),
                         "worst": min(ratios), "at": worst["name"]})
    if rows:
        yield Figure("summary", "Summary", "Time of cuBLAS in plain FP32 over ours, by record and precision: above 1 "
                     "ours is faster.", tuple(sources), table=Table.of_fields(rows))


def _climb(data: Data) -> Iterator[Figure]:
    at = ladder_at(data)
    if at and data.device:
        source, size, rows = at
        title = f"The climb at {size}"
        yield Figure(
            "climb", title, f"TFLOPS of every rung at M = N = K = {size}. On the main line each rung is faster than "
            "the one before; a side branch shows what another way gives, or what a mistake costs. Dashed: cuBLAS in "
            "plain FP32 in the same run, and the FP32 peak of the GPU at its highest clock.", (source,),
            partial(charts.climb, rows, {kernel.number: kernel.aside for kernel in LADDER if kernel.aside},
                    rows[-1]["cublas_tflops"], peak_tflops(data.device), title))


def _distinct(sources: Sequence[Source]) -> tuple[Source, ...]:
    return tuple({source.path: source for source in sources}.values())


def _speed(data: Data) -> Iterator[Figure]:
    library = _library(data)
    lines: list[charts.Line] = [
        (name, name, LIBRARY.get(name, "s5"), [(size, row["tflops"]) for size, (row, _) in sorted(own.items())])
        for name, own in sorted(library.items(), key=lambda line: line[0] in LIBRARY)]
    sources = [source for own in library.values() for _, source in own.values()]
    peak = peak_tflops(data.device) if data.device else None
    for source in data.of("ladder"):
        for name, title, x_title, runs in _sizes(source):
            beside = bool(lines) and name == "squares"
            also = ", cuBLAS in the same run, and the library's own products with the peers beside them"
            yield Figure(f"speed-{name}", title, "Every rung" + (also if beside else " and cuBLAS in the same run")
                         + ". Both axes are logarithmic; point at a line for its figures.",
                         _distinct([source, *(sources if beside else [])]),
                         partial(charts.speed, [*_rung_lines(runs), *(lines if beside else [])], peak, title, x_title))


def _sizes(source: Source) -> Iterator[tuple[str, str, str, list[tuple[int, list[Row]]]]]:
    even = squares(source)
    if len(even) > 1:
        yield "squares", "Performance against size", "M = N = K", even
    by_k: dict[int, list[tuple[int, list[Row]]]] = {}
    for shape, rows in source.runs():
        if len(shape) == 3 and shape[0] == shape[1] and timed(rows):
            by_k.setdefault(shape[2], []).append((shape[0], timed(rows)))
    for k, runs in by_k.items():
        if len(runs) > 1:
            yield f"k{k}", f"Performance against size, K = {k}", "M = N", sorted(runs, key=lambda run: run[0])


def _rung_lines(runs: Sequence[tuple[int, list[Row]]]) -> Iterator[charts.Line]:
    points: dict[int, list[tuple[float, float]]] = {}
    named = {row["number"]: row for _, rows in runs for row in rows}
    for size, rows in runs:
        for row in rows:
            points.setdefault(row["number"], []).append((size, row["tflops"]))
    for number, line in points.items():
        yield rung_name(named[number]), f"{number:02}", charts.rung_class(number), line
    yield "cuBLAS FP32", "cuBLAS FP32", "ink bold", [(size, rows[-1]["cublas_tflops"]) for size, rows in runs]


def _by_variant(rows: Sequence[Row]) -> list[Row]:
    """The timed rows, those of a variant together."""
    measured = [row for row in rows if row.get("ratio_to_cublas")]
    order = list(dict.fromkeys(map(Variant.of, measured)))
    return sorted(measured, key=lambda row: order.index(Variant.of(row)))


def ratio_chart(rows: Sequence[Row], title: str, width: int) -> Chart:
    """Ratios to cuBLAS of the rows that were timed, by variant and suite."""
    return charts.ratios(_by_variant(rows), lambda row: Variant.of(row).name(str(row["suite"])), title, width)


def _ratios(data: Data) -> Iterator[Figure]:
    for source in sorted(benches(data), key=_is_drawn):
        rows = _by_variant(source.rows)
        if _is_drawn(source):
            rows.sort(key=lambda row: float(row["ratio_to_cublas"]))
        names = list(dict.fromkeys("IEEE" if Variant.of(row) == IEEE else Variant.of(row).precision for row in rows))
        suites = list(dict.fromkeys(str(row["suite"]) for row in rows))
        title = f"Ratio to cuBLAS: {', '.join(names)}; {', '.join(suites) if len(suites) <= 3 else 'all suites'}"
        peers = " Rings: other libraries, by the same measure." if any(row.get("peers") for row in rows) else ""
        yield Figure(f"ratio-{source.path.stem}", title,
                     "Time of cuBLAS in plain FP32 over ours, interleaved on the same arrays: above 1 ours is faster. "
                     f"A bar through a mark is the 10th to 90th percentile of the pairs.{peers}",
                     (source,), partial(ratio_chart, rows, title), bench_table(rows),
                     folded=len(rows) > MOST_OPEN)


def _is_drawn(source: Source) -> bool:
    """Whether a record's products were drawn by chance: they come last, and by their ratios."""
    return all(row["suite"] == DRAWN for row in source.rows)


def _roofline(data: Data) -> Iterator[Figure]:
    at = ladder_at(data)
    if at and data.device:
        source, size, rungs = at
        counted: dict[int, float] = {}
        counters = data.of("counters")
        for one in counters:
            for shape, rows in one.runs():
                if shape == (size,) * 3:
                    counted |= {row["number"]: row["ncu"]["dram_bytes"] for row in reversed(rows)
                                if row["ncu"].get("dram_bytes")}
        points = [(rung_name(row), charts.rung_class(row["number"]), 1 / row["bytes_per_flop"],
                   2 * size ** 3 / counted[row["number"]] if row["number"] in counted else None, row["tflops"])
                  for row in rungs if row["bytes_per_flop"]]
        title = f"Roofline at {size}"
        yield Figure("roofline", title, "Bandwidth and FP32 peak bound what a kernel can do with the bytes that it "
                     "moves. Rings stand at the bytes that a tiling asks of global memory: caches carry kernels with "
                     "small tiles beyond that bound. Full marks stand at the bytes that Nsight Compute counted at "
                     "DRAM, where a record of counters is given.",
                     _distinct([source, *(counters if counted else [])]),
                     partial(charts.roofline, points, data.device["bandwidth_gbs"], peak_tflops(data.device), title))


def _sweep(data: Data) -> Iterator[Figure]:
    for source in data.of("sweep"):
        rows = timed(source.rows)
        if rows:
            shape = "x".join(map(str, next(shape for shape, _ in source.runs())))
            title = f"Tiles of rung {rows[0]['number']:02}, {shape}"
            yield Figure(f"tiles-{source.path.stem}", title, "Every tile of the template that was compiled and timed. "
                         "The colour is its speed.", (source,), partial(charts.heat, rows, title), sweep_table(rows))


def _errors(data: Data) -> Iterator[Figure]:
    seen = set[str]()
    for source in data.of("accuracy"):
        for test, what in (("long-k", "256 x 256 x K"), ("random", "squares")):
            panels, least = error_panels(source.rows, test)
            if panels:
                title = f"Error against K, {what}"
                name = f"error-{test}" if test not in seen else f"error-{test}-{source.path.stem}"
                seen.add(test)
                yield Figure(name, title, "Largest componentwise error against FP64, in eps |A||B| with "
                             "eps = 2^-23. Both axes are logarithmic; errors of 0 and infinite ones have no mark.",
                             (source,), partial(charts.errors, panels, least, title), folded=test == "random")


def error_chart(rows: Sequence[Row], tests: Sequence[str], title: str, width: int) -> Chart | None:
    """Largest error against K of the first of ``tests`` that has curves; None: none has any."""
    return next((charts.errors(panels, least, title, width) for panels, least in (error_panels(rows, test)
                                                                                  for test in tests) if panels), None)


def error_panels(rows: Sequence[Row], test: str) -> tuple[dict[str, dict[str, list[tuple[float, float]]]],
                                                          dict[str, list[tuple[float, float]]]]:
    """Of one test: by family and contender (K, largest error), and by family (K, error of one rounding).

    A family that was judged at one K alone is left out: one K is no curve.
    """
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    least: dict[str, dict[float, float]] = {}
    for row in rows:
        if row["test"] != test or row.get("max_error") is None:
            continue
        k, error = row["shape"][2], float(row["max_error"])
        if error > 0 and isfinite(error):
            panels.setdefault(row["family"], {}).setdefault(row["contender"], []).append((k, error))
        if isfinite(float(row["rounding_max"])) and float(row["rounding_max"]) > 0:
            least.setdefault(row["family"], {})[k] = float(row["rounding_max"])
    drawn = {family: lines for family, lines in panels.items() if any(len(dict(line)) > 1 for line in lines.values())}
    return ({family: {name: sorted(line) for name, line in lines.items()} for family, lines in drawn.items()},
            {family: sorted(line.items()) for family, line in least.items() if family in drawn})


def _facts(data: Data) -> Iterator[Figure]:
    at = ladder_at(data)
    for source in [at[0]] if at else data.of("ladder")[:1]:
        shape, rows = next((run for run in source.runs() if at and run[0] == (at[1],) * 3), next(source.runs()))
        yield Figure("facts", "Facts of each kernel", "From ptxas, the configuration and the SASS of the main loop. "
                     f"Measured figures: M, N, K = {', '.join(map(str, shape))}.", (source,), table=facts_table(rows))


def _others(data: Data) -> Iterator[Figure]:
    """Records that are shown as they are: a column for each field."""
    for source in data.of("counters"):
        rows = [{"rung": rung_name(row), "M x N x K": "x".join(map(str, shape)),
                 **{name: value for name, value in row["ncu"].items() if name != "kernel"}}
                for shape, own in source.runs() for row in own]
        yield Figure("counters", "Counters of each kernel", "As Nsight Compute counts them.", (source,),
                     table=Table.of_fields(rows), folded=True)
    for kind, title, text in (
            ("bill", "The loop's bill", "Where the issue slots of each kernel's main loop go."),
            ("programs", "What programs gain", "Models and solvers that others wrote, under peakgemm.torch.use()."),
            ("workload", "Workloads", "Training, a factorisation and an iterative solver with peakgemm's products in "
                                      "place of torch's.")):
        for source in data.of(kind):
            ran = [row for row in source.rows if "error" not in row]
            yield Figure(source.path.stem, title, text, (source,), table=Table.of_fields(ran))
