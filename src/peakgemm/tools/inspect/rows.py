"""Figures as words: the lines of the terminal's table, of a comparison, and of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .facts import CODE_ADVICE


@dataclass(frozen=True, slots=True)
class Row:
    """One line: the group it stands in, what it tells, and the text."""

    group: str
    name: str
    text: str


def rows(facts: Mapping[str, Any]) -> list[Row]:
    """Every figure that is known, by group."""
    return [*_resources(facts["resources"]), *_loop(facts), *_reads(facts["registers_read"]),
            *_roofline(facts["roofline"])]


@dataclass(frozen=True, slots=True)
class Pair:
    """One line of a comparison; ``differs``: whether the texts do."""

    group: str
    name: str
    first: str
    second: str

    @property
    def differs(self) -> bool:
        """Whether the two texts differ."""
        return self.first != self.second


def compared(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Pair]:
    """The lines of both, in the order of ``first``; a dash where one has no such line."""
    ours, theirs = ({(row.group, row.name): row.text for row in rows(one)} for one in (first, second))
    order: dict[str, list[str]] = {}
    for group, name in (*ours, *theirs):
        names = order.setdefault(group, [])
        if name not in names:
            names.append(name)
    return [Pair(group, name, ours.get((group, name), "-"), theirs.get((group, name), "-"))
            for group, names in order.items() for name in names]


def _resources(found: Mapping[str, Any]) -> list[Row]:
    def row(name: str, text: str) -> Row:
        return Row("resources", name, text)

    lines = []
    if found["registers"] is not None:
        lines.append(row("registers a thread", str(found["registers"])))
    if found["spill_bytes"] is not None:
        lines.append(row("spills", f"{found['spill_bytes']} bytes"))
    if found["local_loads"] or found["local_stores"] or found["stack_bytes"]:
        lines.append(row("local memory", f"{found['stack_bytes'] or 0} bytes of stack, {found['local_loads']} loads, "
                                         f"{found['local_stores']} stores in the code"))
    if found["threads"] is not None:
        lines.append(row("threads a block", str(found["threads"])))
    dynamic = "unknown" if found["dynamic_shared"] is None else f"{found['dynamic_shared']:,}"
    lines.append(row("shared memory", f"{found['static_shared']:,} bytes static, {dynamic} dynamic"))
    if found["occupancy"] is not None:
        lines.append(row("occupancy", f"{found['blocks_per_sm']} blocks of an SM, {found['warps_per_sm']} warps "
                                      f"({100 * found['occupancy']:.0f} %), by {found['limited_by']}"))
    return lines


def _loop(facts: Mapping[str, Any]) -> list[Row]:
    found, code = facts["loop"], facts["code"]
    if found is None:
        return [Row("code", "instructions", f"{code['instructions']:,}"),
                Row("code", "main loop", "the kernel has no loop")]

    def row(name: str, text: str) -> Row:
        return Row("main loop", name, text)

    size = found["code_bytes"]
    fits = "fits" if size <= CODE_ADVICE else "above"
    lines = [
        row("which", f"at {found['header']:#06x}, {found['why']}"),
        row("instructions", f"{found['instructions']:,} of {code['instructions']:,}"),
        row("code", f"{size / 1024:.1f} KB ({fits} the {CODE_ADVICE >> 10} KB advised for the instruction cache)"),
    ]
    if found["ffma"]:
        lines.append(row("FFMA", f"{found['ffma']:,} ({100 * found['ffma_fraction']:.1f} % of the issue slots)"))
    if found["tensor"]:
        lines.append(row("tensor", str(found["tensor"])))
    lines.append(row("by pipe", _counts(found["pipes"])))
    opcodes = dict(list(found["opcodes"].items())[:8])
    lines.append(row("by opcode", _counts(opcodes)))
    if found["widths"]:
        lines.append(row("access widths", "; ".join(
            f"{opcode} " + ", ".join(f"{bits}b x{count}" for bits, count in wide.items())
            for opcode, wide in found["widths"].items())))
    if found["loads_in_a_row"]:
        lines.append(row("LDS in a row", str(found["loads_in_a_row"])))
    if found["live_registers"] is not None:
        lines.append(row("live registers", f"{found['live_registers']} at most"))
    lines.append(row("control", f"{found['waits']} instructions wait for a scoreboard, {found['reuse']} carry .reuse"))
    return lines


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _reads(found: Mapping[str, Any] | None) -> list[Row]:
    if found is None:
        return []
    return [Row("register reads", "rule", found["rule"]),
            Row("register reads", "cycles an FFMA", f"{found['cycles_per_ffma']:.3f} modelled, "
                                                    f"{found['issue_cycles']} at best"),
            Row("register reads", "late FFMA", f"{found['conflicts']:g} a turn"),
            Row("register reads", "from the reuse cache", f"{found['reuse_hits']:g} operands a turn"),
            Row("register reads", "accumulators moved", f"{100 * found['accumulators_moved']:.1f} % of FFMA")]


def _roofline(found: Mapping[str, Any] | None) -> list[Row]:
    if found is None:
        return []
    lines = []
    if found["bound_tflops"] is not None:
        lines.append(Row("roofline", "bound", f"{found['bound_tflops']:.1f} TFLOPS on {found['gpu']} "
                                              f"({found['bytes_per_flop']:.4f} bytes of global memory a FLOP, no cache "
                                              "helping)"))
    if found["issue_tflops"] is not None:
        lines.append(Row("roofline", "issue slots", f"{found['issue_tflops']:.1f} TFLOPS "
                                                    f"({100 * found['issue_ceiling']:.1f} % of peak, modelled)"))
    if (run := found["measured"]) is not None:
        lines.append(Row("roofline", "measured", f"{run['tflops']:.1f} TFLOPS at {_shape(run['shape'])}, "
                                                 f"{run['ratio_to_cublas']:.3f} of cuBLAS ({run['gpu']})"))
    return lines


def _shape(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))
