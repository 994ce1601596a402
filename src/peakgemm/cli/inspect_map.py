"""``peakgemm inspect map``: registers of a thread tile by bank, found by search, beside the naive map."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from ..errors import InvalidValue
from ..sass.maps import RegisterMap, derived, naive
from ..sass.register_reads import rule_of
from ..tools.bench import records
from .console import table
from .measuring import keep_found

_ACROSS = 8  # columns that fit side by side
_COLOURS = ("cyan", "yellow", "green", "magenta")


def command(
    arch: Annotated[str, typer.Option(help="sm_NN, from sm_30 on.")] = "sm_90",
    tile: Annotated[str, typer.Option(help="Results a thread, ROWSxCOLUMNS: multiples of 4.")] = "8x8",
    plain: Annotated[bool, typer.Option("--naive", help="The naive map: A, B and C one after the other.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the map to this file.")] = None,
) -> None:
    """Which register each accumulator of a thread tile takes so that no FFMA waits for a bank."""
    records.check_writable(json)
    match = re.fullmatch(r"(\d{1,3})x(\d{1,3})", tile)
    if match is None:
        raise InvalidValue(f"--tile {tile!r} is not ROWSxCOLUMNS; write 8x8")
    rows, columns = int(match[1]), int(match[2])
    rule = rule_of(arch)
    before = naive(rule, rows, columns)
    shown = before if plain else derived(rule, rows, columns)
    late = shown.late()

    def cell(register: int, mark: str = "", before: str = "") -> Text:
        bank = rule.bank(register)
        return Text.assemble(before, (f"{register}:{bank}{mark}", _COLOURS[bank]))

    for first in range(0, columns, _ACROSS):
        some = range(first, min(first + _ACROSS, columns))
        last = some[-1] == columns - 1
        table(f"{arch}: {rule.name}" if first == 0 else "", [("", "left"), *((f"B{j}", "right") for j in some)], [
            ["register:bank", *(cell(shown.b[j]) for j in some)],
            *([cell(shown.a[i], before=f"A{i}  "), *(cell(shown.c[i][j], "!" if (i, j) in late else "") for j in some)]
              for i in range(rows))], _caption(shown, None if plain else before) if last else "")
    keep_found(json, [{
        "map": "naive" if plain else "derived", "tile": [rows, columns], "a": list(shown.a), "b": list(shown.b),
        "c": [list(row) for row in shown.c], "late": sorted(map(list, late)), "cycles_per_ffma": shown.cycles_per_ffma,
        "registers": shown.registers}], arch)


def _caption(shown: RegisterMap, before: RegisterMap | None) -> str:
    text = ("! waits. " if shown.late() else "") + _said("This map", shown)
    return text if before is None else f"{text}\n{_said('The naive map', before)}"


def _said(what: str, one: RegisterMap) -> str:
    count = len(one.a) * len(one.b)
    return (f"{what}: {len(one.late())} of {count} FFMAs wait in the walk back and forth, "
            f"{len(one.late_alone())} with nothing in the reuse cache;\n"
            f"{one.cycles_per_ffma:.3f} cycles an FFMA modelled, {one.registers} registers.")


