"""The sortable tables of a report: headers with units, cells as text with the value that they are sorted by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from ..bench import columns as c
from ..bench.columns import Cell, Column, Row


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


def facts_table(rows: Sequence[Row]) -> Table:
    """A row a kernel: resources, main loop, and speed where it was measured."""
    measured = (c.TFLOPS, c.RATIO, *c.ERRORS, *c.CLOCK) if any(row.get("tflops") for row in rows) else ()
    return Table.of(rows, (c.RUNG, c.TILE, *c.RESOURCES, c.BLOCKS, c.LIMITED, c.INSTRUCTIONS, *c.LOOP, c.BYTES,
                           *measured))


def bench_table(rows: Sequence[Row]) -> Table:
    """A row a case of a suite."""
    peers = sorted({name for row in rows for name, peer in row.get("peers", {}).items() if "ratio_to_cublas" in peer})

    def of_peer(name: str) -> Callable[[Row], Any]:
        return lambda row: row.get("peers", {}).get(name, {}).get("ratio_to_cublas")

    return Table.of(rows, (
        c.SUITE, c.CASE, c.Column("kernel", "kernel"), c.TFLOPS, c.CUBLAS, c.RATIO,
        c.Column("10 %", lambda row: row["ratio_spread"][0], 3),
        c.Column("90 %", lambda row: row["ratio_spread"][1], 3),
        *(c.Column(name, of_peer(name), 3) for name in peers), *c.ERRORS, c.TIMED,
        c.Column("pJ/FLOP", "pj_per_flop", 1)))


def sweep_table(rows: Sequence[Row]) -> Table:
    """A row a tile."""
    return Table.of(rows, (*c.TILES, c.DOUBLE, *c.RESOURCES, c.WARPS, c.LIMITED, *c.LOOP, c.TFLOPS, c.RATIO))
