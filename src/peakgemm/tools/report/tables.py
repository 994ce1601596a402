"""The sortable tables of a report: headers with units, cells as text with the value that they are sorted by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from ..bench.variants import Variant

Row = Mapping[str, Any]
Cell = tuple[str, float | str | None]


@dataclass(frozen=True)
class Table:
    """``columns``: (header, whether figures); ``rows``: a cell for each."""

    columns: tuple[tuple[str, bool], ...]
    rows: tuple[tuple[Cell, ...], ...]

    def html(self) -> str:
        """A table whose headers are buttons: the page's script sorts by a click."""
        head = "".join(f'<th scope="col"{" class=num" if figures else ""}><button type="button">{escape(name)}'
                       "</button></th>" for name, figures in self.columns)
        body = "\n".join("<tr>" + "".join(
            f'<td{" class=num" if figures else ""}{_value(value, text)}>{escape(text)}</td>'
            for (text, value), (_, figures) in zip(row, self.columns, strict=True)) + "</tr>" for row in self.rows)
        return f'<table class="sortable"><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>'


def _value(value: float | str | None, text: str) -> str:
    return "" if value is None or str(value) == text else f' data-value="{escape(str(value))}"'


def figure(value: Any, digits: int = 1) -> Cell:
    """A number, or a dash where there is none."""
    if value is None or isinstance(value, str):
        return (value or "-", None)
    return (f"{value:,.{digits}f}", value)


def text(value: Any) -> Cell:
    """A word."""
    return (str(value), None)


def facts_table(rows: Sequence[Row]) -> Table:
    """A row a kernel: resources, main loop, and speed where it was measured."""
    measured = any(row.get("tflops") for row in rows)
    columns = [("rung", False), ("block x BK / thread", False), ("registers", True), ("spilled, B", True),
               ("shared, B", True), ("threads", True), ("blocks/SM", True), ("limited by", False),
               ("loop instructions", True), ("FFMA, %", True), ("bank ceiling, %", True), ("B/FLOP", True)]
    if measured:
        columns += [("TFLOPS", True), ("of cuBLAS", True), ("error, eps", True), ("cuBLAS's", True), ("MHz", True),
                    ("W", True)]
    body = []
    for r in rows:
        c = r["config"]
        cells = [(f"{r['number']:02} {r.get('config_name') or r['name'].replace('_', ' ')}", None),
                 text(f"{c['bm']}x{c['bn']}x{c['bk']} / {c['tm']}x{c['tn']}"), figure(r["registers"], 0),
                 figure(r["spill_bytes"], 0), figure(r["shared_bytes"], 0), figure(r["threads"], 0),
                 figure(r["blocks_per_sm"], 0), text(r["limited_by"]), figure(r["loop_instructions"], 0),
                 _percent(r["ffma_fraction"]), _percent(r["bank_ceiling"]), figure(r["bytes_per_flop"], 3)]
        if measured:
            cells += [figure(r.get("tflops"), 2), figure(r.get("ratio_to_cublas"), 3), figure(r.get("max_error"), 2),
                      figure(r.get("reference_error"), 2), figure(r.get("sm_clock_mhz"), 0),
                      figure(r.get("power_w"), 0)]
        body.append(tuple(cells))
    return Table(tuple(columns), tuple(body))


def _percent(fraction: float | None) -> Cell:
    return figure(None if fraction is None else 100 * fraction, 1)


def bench_table(rows: Sequence[Row]) -> Table:
    """A row a case of a suite."""
    peers = sorted({name for row in rows for name, peer in row.get("peers", {}).items() if "ratio_to_cublas" in peer})
    columns = [("suite", False), ("case", False), ("kernel", False), ("TFLOPS", True), ("cuBLAS", True),
               ("ratio", True), ("10 %", True), ("90 %", True), *((name, True) for name in peers), ("error, eps", True),
               ("cuBLAS's", True), ("timed", False), ("pJ/FLOP", True)]
    return Table(tuple(columns), tuple(
        (text(Variant.of(r).name(r["suite"])), text(r["name"]), text(r.get("kernel", "-")), figure(r["tflops"], 2),
         figure(r["cublas_tflops"], 2), figure(r["ratio_to_cublas"], 3), figure(r["ratio_spread"][0], 3),
         figure(r["ratio_spread"][1], 3),
         *(figure(r.get("peers", {}).get(name, {}).get("ratio_to_cublas"), 3) for name in peers),
         figure(r.get("max_error"), 2), figure(r.get("reference_error"), 2), text(r.get("mode", "-")),
         figure(r.get("pj_per_flop"), 1)) for r in rows))


def sweep_table(rows: Sequence[Row]) -> Table:
    """A row a tile."""
    columns = tuple((name, name not in ("double buffer", "limited by")) for name in (
        "bm", "bn", "bk", "rm", "rn", "double buffer", "registers", "spilled, B", "shared, B", "warps/SM", "limited by",
        "FFMA, %", "bank ceiling, %", "TFLOPS", "of cuBLAS"))
    return Table(columns, tuple(
        (*(figure(r["config"][name], 0) for name in ("bm", "bn", "bk", "tm", "tn")),
         text("on" if r["config"]["stages"] == 2 else "off"), figure(r["registers"], 0), figure(r["spill_bytes"], 0),
         figure(r["shared_bytes"], 0), figure(r.get("warps_per_sm"), 0), text(r["limited_by"]),
         _percent(r["ffma_fraction"]), _percent(r["bank_ceiling"]), figure(r["tflops"], 1),
         figure(r["ratio_to_cublas"], 3)) for r in rows))


def bill_table(rows: Sequence[tuple[str, Mapping[str, float]]]) -> Table:
    """A row a kernel, a column each part."""
    names = list(dict.fromkeys(name for _, parts in rows for name in parts))
    return Table((("kernel", False), *((f"{name}, %", True) for name in names)), tuple(
        (text(label), *(figure(parts.get(name), 1) for name in names)) for label, parts in rows))


COUNTED = ("shared_loads", "shared_stores", "shared_wavefronts", "shared_wavefronts_ideal", "global_load_sectors",
           "global_store_sectors", "instructions", "ffma_pipe_percent", "issue_active_percent", "dram_bytes",
           "l1_hit_percent")


def counters_table(runs: Sequence[tuple[tuple[int, ...], Sequence[Row]]]) -> Table:
    """A row a kernel and shape."""
    shown = [name for name in COUNTED if any(row["ncu"].get(name) is not None for _, rows in runs for row in rows)]
    return Table((("rung", False), ("M x N x K", False), *((name.replace("_", " "), True) for name in shown)), tuple(
        (text(f"{r['number']:02} {r['name'].replace('_', ' ')}" + (
            f", {r['config_name']}" if r.get("config_name") not in (None, "default") else "")),
         text("x".join(map(str, shape))),
         *(figure(r["ncu"].get(name), 1 if name.endswith("percent") else 0) for name in shown))
        for shape, rows in runs for r in rows))


def workload_table(rows: Sequence[Row]) -> Table:
    """A row a workload and precision."""
    columns = (("workload", False), ("timed", False), ("products", False), ("ms", True), ("speed-up", True),
               ("from FP64", True), ("from torch's FP32", True))
    return Table(columns, tuple(
        (text(r["workload"]), text(r["unit"]), text(r["products"]), figure(r["ms"], 2), figure(r["speedup"], 2),
         _small(r["from_fp64"]), _small(r["from_fp32"])) for r in rows))


def programs_table(rows: Sequence[Row]) -> Table:
    """A row a program and precision."""
    columns = (("program", False), ("of", False), ("timed", False), ("products", False), ("ms", True),
               ("speed-up", True), ("from torch's FP32", True), ("from FP64", True), ("rerouted", True),
               ("torch's own", True))
    return Table(columns, tuple(
        (text(r["program"]), text(r.get("package", "-")), text(r["unit"]), text(r["products"]), figure(r["ms"], 2),
         figure(r["speedup"], 2), _small(r["from_fp32"]), _small(r.get("from_fp64")), figure(r.get("rerouted"), 0),
         figure(r.get("fallbacks"), 0)) for r in rows if "error" not in r))


def _small(value: Any) -> Cell:
    return (f"{value:.2g}", value) if isinstance(value, (int, float)) else (str(value or "-"), None)

