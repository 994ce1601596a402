"""A run of a kernel as the JSON that the explorer shows; web/types.d.ts has the schema."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path, PurePath, PureWindowsPath
from typing import Any

import numpy as np

from ..simulator.front.program import Flow
from ..simulator.front.ptx import Instruction
from ..simulator.machine import Machine
from ..simulator.report import InstructionCounts, Report
from . import banks
from .explain import global_sentence, shared_sentence
from .recorder import Access, Limits, Recorder, Write
from .timeline import KINDS, kind_of, tracks

SCHEMA = 1
ROW = 128  # bytes: a word of each bank, four sectors
SAID = {
    "events": "the timeline ends after {events:,} events of the block",
    "accesses": "accesses are kept for the first {accesses:,} of each detailed warp",
    "writes": "register values are kept for some {writes:,} writes of each detailed warp",
    "fma_writes": "of those by FMAs for the first {fma_writes:,}",
}


@dataclass(frozen=True)
class Named:
    """What a trace is called: ``name`` in a URL, ``label`` for a reader, ``about`` of the launch, ``arrays`` by the
    number of their argument."""

    name: str
    label: str
    about: str
    arrays: Mapping[int, str]
    shapes: Mapping[int, tuple[int, ...]]


def detailed(warps: int) -> tuple[int, ...]:
    """The warps whose addresses and values are kept: the first two and the last, which may have another role."""
    return tuple(sorted({0, min(1, warps - 1), warps - 1}))


def trace(recorder: Recorder, report: Report, named: Named, sources: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The JSON of a finished run; ``sources`` holds the lines of source files by name."""
    machine = recorder.machine
    assert machine is not None
    code, flow = machine.program.kernel.instructions, machine.program.flow
    files = list(dict.fromkeys(ins.file for ins in code if ins.file))
    names = {name: shown(name) for name in sorted(files, key=len, reverse=True)}
    faults = [replace(fault, file=_renamed(fault.file, names), message=_renamed(fault.message, names))
              for fault in report.faults]
    table = _Shapes()
    warps = machine.padded // 32
    return {
        "schema": SCHEMA, "name": named.name, "label": named.label, "kernel": report.kernel, "about": named.about,
        "grid": list(machine.grid), "block": list(machine.block_shape), "warps": warps,
        "traced_block": list(machine.block_index(recorder.block)), "detailed": list(recorder.warps),
        "stopped": _renamed(report.stopped, names), "counters": report.counters,
        "faults": [asdict(fault) for fault in faults],
        "arrays": _arrays(machine, named), "shared": _shared(machine),
        "files": [{"name": names[name], "lines": list(sources.get(name, ()))} for name in files],
        "code": [_instruction(ins, report.instructions[ins.index], flow[ins.index], files)
                 if report.instructions[ins.index].executions else None for ins in code],
        "kinds": list(KINDS),
        "tracks": [{"warps": one.warps, "steps": _runs(one.steps), "jumps": one.jumps, "flights": one.flights,
                    "end": one.end} for one in tracks(recorder, code, flow, warps)],
        "accesses": {str(warp): table.rows(found, code, recorder, warp) for warp, found in recorder.accesses.items()},
        "shapes": table.shapes,
        "writes": {str(warp): [[one.step, one.register, _values(one)] for one in found]
                   for warp, found in recorder.writes.items()},
        "limits": _said(recorder),
        "sass": None,
    }


def shown(file: str) -> str:
    """A source file as a page names it, without the folders of the machine that made the page: pages are shared."""
    path = PureWindowsPath(file) if PureWindowsPath(file).drive else PurePath(file)
    if not path.is_absolute():
        return file
    here = Path.cwd()
    return path.relative_to(here).as_posix() if here.name and path.is_relative_to(here) else path.name  # not from /


def _renamed(text: str, names: Mapping[str, str]) -> str:
    for name, short in names.items():
        text = text.replace(name, short)
    return text


def _said(recorder: Recorder) -> list[str]:
    """What was left out, in words."""
    numbers = asdict(recorder.limits)
    return [text.format(**numbers) for name, text in SAID.items() if name in recorder.dropped]


def _instruction(ins: Instruction, counts: InstructionCounts, flow: Flow, files: Sequence[str]) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "text": ins.text.replace("\t", " "), "ptx": ins.ptx_line, "kind": KINDS.index(kind_of(ins)),
        "reads": list(dict.fromkeys(flow[0])), "writes": list(dict.fromkeys(flow[1])),
        "n": [counts.executions, counts.wavefronts, counts.wavefronts_ideal, counts.sectors, counts.sectors_ideal]}
    if ins.file:
        shown["at"] = [files.index(ins.file), ins.line]
    return shown


def _arrays(machine: Machine, named: Named) -> list[dict[str, Any]]:
    """The arrays that were passed: name, device address, bytes, shape and bytes of an element."""
    arrays = []
    for segment in machine.arena.segments:
        for base, size, name in segment.names:
            number = int(name.rpartition(" ")[2]) if name.startswith("argument ") else None
            shape = named.shapes.get(number, ()) if number is not None else ()
            elements = int(np.prod(shape)) if shape else 0
            item = size // elements if elements else 4
            shown = named.arrays.get(number, name) if number is not None else name.removeprefix("variable ")
            arrays.append({"name": shown, "base": base, "bytes": size, "shape": list(shape), "item": item})
    return arrays


def _shared(machine: Machine) -> list[dict[str, Any]]:
    """Static variables in shared memory, by address; what the launch adds is one more."""
    variables: list[dict[str, Any]] = []
    for variable in machine.program.kernel.variables:
        if variable.space == "shared" and not variable.dynamic and variable.name in machine.symbols:
            short = variable.name.rpartition("E")[2].lstrip("0123456789") if "_ZZ" in variable.name else variable.name
            variables.append({"name": short or variable.name, "base": machine.symbols[variable.name],
                              "bytes": variable.size})
    end = max((one["base"] + one["bytes"] for one in variables), default=0)
    if machine.shared_size > end:
        variables.append({"name": "dynamic", "base": end, "bytes": machine.shared_size - end})
    return variables


def _runs(steps: Sequence[int]) -> list[list[int]]:
    """Steps as runs of instructions that follow each other: [first, count]."""
    runs: list[list[int]] = []
    for index in steps:
        if runs and index == runs[-1][0] + runs[-1][1]:
            runs[-1][1] += 1
        else:
            runs.append([index, 1])
    return runs


def _values(write: Write) -> Any:
    """The value of all lanes where it is one, {"from", "step"} where it grows evenly, else one a lane."""
    shown = [_value(value) for value in write.values]
    if all(value == shown[0] for value in shown):
        return shown[0]
    if all(type(value) is int for value in shown) and len({b - a for a, b in pairwise(shown)}) == 1:
        return {"from": shown[0], "step": shown[1] - shown[0]}
    return shown


def _value(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 53:
        return str(value)  # JavaScript's numbers end there
    return int(value) if isinstance(value, bool) else value


class _Shapes:
    """Accesses that differ by a multiple of 128 bytes look alike: each is drawn and explained once."""

    def __init__(self) -> None:
        self.shapes: list[dict[str, Any]] = []
        self._known: dict[tuple[Any, ...], int] = {}

    def rows(self, accesses: Sequence[Access], code: Sequence[Instruction], recorder: Recorder,
             warp: int) -> list[list[int]]:
        """Of each access: step, shape, the address that the shape is counted from, wavefronts of a copy's source."""
        rows = []
        for place, one in enumerate(accesses):
            base = min(address for address in one.addresses if address is not None) // ROW * ROW
            row = [one.step, self._shape(one, base), base]
            before = accesses[place - 1] if place else None
            if one.space == "shared" and not one.load and before is not None and before.step == one.step \
                    and before.space == "global":
                row.append(banks.source_wavefronts(before.addresses, before.size))
            rows.append(row)
        return rows

    def _shape(self, one: Access, base: int) -> int:
        offsets = tuple(None if address is None else address - base for address in one.addresses)
        key = one.space, one.size, one.load, offsets
        if key not in self._known:
            self._known[key] = len(self.shapes)
            self.shapes.append(shape(one.space, one.size, one.load, offsets))
        return self._known[key]


def shape(space: str, size: int, load: bool, offsets: banks.Addresses) -> dict[str, Any]:
    """How an access is drawn: its cells, its cost, and the sentence."""
    drawn: dict[str, Any] = {"space": space, "size": size, "load": load, "offsets": list(offsets)}
    if space == "shared":
        cost = banks.shared(offsets, size, load)
        return {**drawn, "count": cost.count, "ideal": cost.ideal, "phases": list(cost.phases),
                "rows": [[[cell.word, *cell.lanes] for cell in row] for row in cost.wavefronts],
                "text": shared_sentence(offsets, size, load)}
    moved = banks.sectors(offsets, size)
    return {**drawn, "count": moved.count, "ideal": moved.ideal,
            "rows": [[number, *lanes] for number, lanes in moved.sectors], "text": global_sentence(offsets, size)}


__all__ = ["SCHEMA", "Limits", "Named", "Recorder", "detailed", "shape", "shown", "trace"]
