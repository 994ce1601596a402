"""Columns of the tables of ladder, sweep and bench: what is read of a row, under which header, with how many digits.

The console and the page of a report show the same columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .variants import Variant

Row = Mapping[str, Any]
Cell = tuple[str, float | None]


@dataclass(frozen=True)
class Column:
    """``of`` a row: a field's name, or a function; ``digits`` behind the point; None: words. ``short``: the header
    where 100 columns must do."""

    header: str
    of: str | Callable[[Row], Any]
    digits: int | None = None
    short: str = ""

    def cell(self, row: Row) -> Cell:
        """The text, and the number that it is sorted by; a dash where there is nothing."""
        value = row.get(self.of) if isinstance(self.of, str) else self.of(row)
        if value is None or self.digits is None or isinstance(value, str):
            return ("-" if value is None else str(value), None)
        return (f"{value:,.{self.digits}f}", value)


def rung_name(row: Row) -> str:
    """``14 large tile``, or the name of its configuration in place of the rung's."""
    return f"{row['number']:02} {row.get('config_name') or row['name'].replace('_', ' ')}"


def percent(name: str) -> Callable[[Row], float | None]:
    """A share in hundredths."""
    return lambda row: None if row[name] is None else 100 * row[name]


def config(name: str) -> Callable[[Row], Any]:
    """A field of the configuration."""
    return lambda row: row["config"][name]


def spread(row: Row) -> str:
    """The 10th and the 90th percentile of the ratio."""
    return "-".join(f"{ratio:.3f}" for ratio in row["ratio_spread"])


def _tile(row: Row) -> str:
    c = row["config"]
    stages = f" {c['stages']}st" if c["stages"] > 1 else ""
    return f"{c['bm']}x{c['bn']}x{c['bk']}/{c['tm']}x{c['tn']}{stages}"


RUNG, TILE = Column("rung", rung_name), Column("block x BK / thread", _tile)
RESOURCES = (Column("registers", "registers", 0, "regs"), Column("spilled, B", "spill_bytes", 0, "spill"),
             Column("shared, B", "shared_bytes", 0, "shared"), Column("threads", "threads", 0, "thr"))
BLOCKS, WARPS = Column("blocks/SM", "blocks_per_sm", 0, "blk/SM"), Column("warps/SM", "warps_per_sm", 0, "warps")
LIMITED, TIMED = Column("limited by", "limited_by"), Column("timed", "mode")
INSTRUCTIONS = Column("loop instructions", "loop_instructions", 0, "instr")
BYTES = Column("B/FLOP", "bytes_per_flop", 3)
LOOP = (Column("FFMA, %", percent("ffma_fraction"), 1, "FFMA"),
        Column("bank ceiling, %", percent("bank_ceiling"), 1, "banks"))
TILES = tuple(Column(header, config(name), 0) for header, name in (
    ("bm", "bm"), ("bk", "bk"), ("bn", "bn"), ("rm", "tm"), ("rn", "tn")))
DOUBLE = Column("double buffer", lambda row: "on" if row["config"]["stages"] == 2 else "off", short="db")
CASE, SUITE = Column("case", "name"), Column("suite", lambda row: Variant.of(row).name(row["suite"]))
TFLOPS, CUBLAS = Column("TFLOPS", "tflops", 2), Column("cuBLAS", "cublas_tflops", 2)
RATIO, SPREAD = Column("of cuBLAS", "ratio_to_cublas", 3, "ratio"), Column("10-90 %", spread)
ERRORS = (Column("error, eps", "max_error", 2, "error"), Column("cuBLAS's", "reference_error", 2))
CLOCK = (Column("MHz", "sm_clock_mhz", 0), Column("W", "power_w", 0))
