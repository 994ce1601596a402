"""The sortable tables of a report: headers with units, cells as text with the value that they are sorted by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from ..bench.variants import Variant

Row = Mapping[str, Any]
Cell = tuple[str, float | None]


@dataclass(frozen=True)
class Column:
    """``of`` a row: a field's name, or a function; ``digits`` behind the point; None: words."""

    header: str
    of: str | Callable[[Row], Any]
    digits: int | None = None

    def cell(self, row: Row) -> Cell:
        """The text, and the number that it is sorted by; a dash where there is nothing."""
        value = row.get(self.of) if isinstance(self.of, str) else self.of(row)
        if value is None or self.digits is None or isinstance(value, str):
            return ("-" if value is None else str(value), None)
        return (f"{value:,.{self.digits}f}", value)


@dataclass(frozen=True)
class Table:
    """``columns``: (header, whether figures); ``rows``: a cell for each."""

    columns: tuple[tuple[str, bool], ...]
    rows: tuple[tuple[Cell, ...], ...]

    @classmethod
    def of(cls, rows: Sequence[Row], columns: Sequence[Column]) -> Table:
        """A line for each row."""
        return cls(tuple((column.header, column.digits is not None) for column in columns),
                   tuple(tuple(column.cell(row) for column in columns) for row in rows))

    @classmethod
    def of_fields(cls, rows: Sequence[Row]) -> Table:
        """A column for every field that holds a word or a number, in the order in which they first appear."""
        names = dict.fromkeys(name for row in rows for name, value in row.items()
                              if isinstance(value, (str, int, float)))
        figures = {name: not any(isinstance(row.get(name), str) for row in rows) for name in names}

        def cell(row: Row, name: str) -> Cell:
            value = row.get(name)
            return (f"{value:,.4g}", value) if isinstance(value, (int, float)) else (str(value or "-"), None)

        return cls(tuple((name.replace("_", " "), figures[name]) for name in names),
                   tuple(tuple(cell(row, name) for name in names) for row in rows))

    def html(self) -> str:
        """A table whose headers are buttons: the page's script sorts by a click."""
        head = "".join(f'<th scope="col"{" class=num" if figures else ""}><button type="button">{escape(name)}'
                       "</button></th>" for name, figures in self.columns)
        body = "\n".join("<tr>" + "".join(
            f'<td{" class=num" if figures else ""}{_value(value, text)}>{escape(text)}</td>'
            for (text, value), (_, figures) in zip(row, self.columns, strict=True)) + "</tr>" for row in self.rows)
        return f'<table class="sortable"><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>'


def _value(value: float | None, text: str) -> str:
    return "" if value is None or str(value) == text else f' data-value="{escape(str(value))}"'


def rung_name(row: Row) -> str:
    """``14 large tile``, or the name of its configuration in place of the rung's."""
    return f"{row['number']:02} {row.get('config_name') or row['name'].replace('_', ' ')}"


def _tile(row: Row) -> str:
    c = row["config"]
    return f"{c['bm']}x{c['bn']}x{c['bk']} / {c['tm']}x{c['tn']}"


def _percent(name: str) -> Callable[[Row], float | None]:
    return lambda row: None if row[name] is None else 100 * row[name]


_LOOP = (Column("FFMA, %", _percent("ffma_fraction"), 1), Column("bank ceiling, %", _percent("bank_ceiling"), 1))
_RESOURCES = (Column("registers", "registers", 0), Column("spilled, B", "spill_bytes", 0),
              Column("shared, B", "shared_bytes", 0))
_ERRORS = (Column("error, eps", "max_error", 2), Column("cuBLAS's", "reference_error", 2))
_FACTS = (Column("rung", rung_name), Column("block x BK / thread", _tile), *_RESOURCES, Column("threads", "threads", 0),
          Column("blocks/SM", "blocks_per_sm", 0), Column("limited by", "limited_by"),
          Column("loop instructions", "loop_instructions", 0), *_LOOP, Column("B/FLOP", "bytes_per_flop", 3))
_MEASURED = (Column("TFLOPS", "tflops", 2), Column("of cuBLAS", "ratio_to_cublas", 3), *_ERRORS,
             Column("MHz", "sm_clock_mhz", 0), Column("W", "power_w", 0))


def facts_table(rows: Sequence[Row]) -> Table:
    """A row a kernel: resources, main loop, and speed where it was measured."""
    return Table.of(rows, (*_FACTS, *(_MEASURED if any(row.get("tflops") for row in rows) else ())))


def bench_table(rows: Sequence[Row]) -> Table:
    """A row a case of a suite."""
    peers = sorted({name for row in rows for name, peer in row.get("peers", {}).items() if "ratio_to_cublas" in peer})

    def of_peer(name: str) -> Callable[[Row], Any]:
        return lambda row: row.get("peers", {}).get(name, {}).get("ratio_to_cublas")

    return Table.of(rows, (
        Column("suite", lambda row: Variant.of(row).name(row["suite"])), Column("case", "name"),
        Column("kernel", "kernel"), Column("TFLOPS", "tflops", 2), Column("cuBLAS", "cublas_tflops", 2),
        Column("ratio", "ratio_to_cublas", 3), Column("10 %", lambda row: row["ratio_spread"][0], 3),
        Column("90 %", lambda row: row["ratio_spread"][1], 3), *(Column(name, of_peer(name), 3) for name in peers),
        *_ERRORS, Column("timed", "mode"), Column("pJ/FLOP", "pj_per_flop", 1)))


def sweep_table(rows: Sequence[Row]) -> Table:
    """A row a tile."""
    def size(name: str) -> Callable[[Row], Any]:
        return lambda row: row["config"][name]

    sizes = (("bm", "bm"), ("bn", "bn"), ("bk", "bk"), ("rm", "tm"), ("rn", "tn"))
    return Table.of(rows, (
        *(Column(header, size(name), 0) for header, name in sizes),
        Column("double buffer", lambda row: "on" if row["config"]["stages"] == 2 else "off"), *_RESOURCES,
        Column("warps/SM", "warps_per_sm", 0), Column("limited by", "limited_by"), *_LOOP,
        Column("TFLOPS", "tflops", 1), Column("of cuBLAS", "ratio_to_cublas", 3)))
