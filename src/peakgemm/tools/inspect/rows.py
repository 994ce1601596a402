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


def _resources(figures: Mapping[str, Any]) -> list[Row]:
    def row(name: str, text: str) -> Row:
        return Row("resources", name, text)

    lines = []
    if figures["registers"] is not None:
        lines.append(row("registers a thread", str(figures["registers"])))
    if figures["spill_bytes"] is not None:
        lines.append(row("spills", f"{figures['spill_bytes']} bytes"))
    if figures["local_loads"] or figures["local_stores"] or figures["stack_bytes"]:
        lines.append(row("local memory", f"{figures['stack_bytes'] or 0} bytes of stack, {figures['local_loads']} "
                                         f"loads, {figures['local_stores']} stores in the code"))
    if figures["threads"] is not None:
        lines.append(row("threads a block", str(figures["threads"])))
    dynamic = "unknown" if figures["dynamic_shared"] is None else f"{figures['dynamic_shared']:,}"
    lines.append(row("shared memory", f"{figures['static_shared']:,} bytes static, {dynamic} dynamic"))
    if figures["occupancy"] is not None:
        lines.append(row("occupancy", f"{figures['blocks_per_sm']} blocks of an SM, {figures['warps_per_sm']} warps "
                                      f"({100 * figures['occupancy']:.0f} %), by {figures['limited_by']}"))
    return lines


def _loop(facts: Mapping[str, Any]) -> list[Row]:
    loop, code = facts["loop"], facts["code"]
    if loop is None:
        return [Row("code", "instructions", f"{code['instructions']:,}"),
                Row("code", "main loop", "the kernel has no loop")]

    def row(name: str, text: str) -> Row:
        return Row("main loop", name, text)

    size = loop["code_bytes"]
    fits = "fits" if size <= CODE_ADVICE else "above"
    lines = [
        row("which", f"at {loop['header']:#06x}, {loop['why']}"),
        row("instructions", f"{loop['instructions']:,} of {code['instructions']:,}"),
        row("code", f"{size / 1024:.1f} KB ({fits} the {CODE_ADVICE >> 10} KB advised for the instruction cache)"),
    ]
    if loop["ffma"]:
        lines.append(row("FFMA", f"{loop['ffma']:,} ({100 * loop['ffma_fraction']:.1f} % of the issue slots)"))
    if loop["tensor"]:
        lines.append(row("tensor", str(loop["tensor"])))
    lines.append(row("by pipe", _counts(loop["pipes"])))
    opcodes = dict(list(loop["opcodes"].items())[:8])
    lines.append(row("by opcode", _counts(opcodes)))
    if loop["widths"]:
        lines.append(row("access widths", "; ".join(
            f"{opcode} " + ", ".join(f"{bits}b x{count}" for bits, count in wide.items())
            for opcode, wide in loop["widths"].items())))
    if loop["loads_in_a_row"]:
        lines.append(row("LDS in a row", str(loop["loads_in_a_row"])))
    if loop["live_registers"] is not None:
        lines.append(row("live registers", f"{loop['live_registers']} at most"))
    lines.append(row("control", f"{loop['waits']} instructions wait for a scoreboard, {loop['reuse']} carry .reuse"))
    return lines


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _reads(reads: Mapping[str, Any] | None) -> list[Row]:
    if reads is None:
        return []
    return [Row("register reads", "rule", reads["rule"]),
            Row("register reads", "cycles an FFMA", f"{reads['cycles_per_ffma']:.3f} modelled, "
                                                    f"{reads['issue_cycles']} at best"),
            Row("register reads", "late FFMA", f"{reads['conflicts']:g} a turn"),
            Row("register reads", "from the reuse cache", f"{reads['reuse_hits']:g} operands a turn"),
            Row("register reads", "accumulators moved", f"{100 * reads['accumulators_moved']:.1f} % of FFMA")]


def _roofline(roofline: Mapping[str, Any] | None) -> list[Row]:
    if roofline is None:
        return []
    lines = []
    if roofline["bound_tflops"] is not None:
        lines.append(Row("roofline", "bound", f"{roofline['bound_tflops']:.1f} TFLOPS on {roofline['gpu']} "
                                              f"({roofline['bytes_per_flop']:.4f} bytes of global memory a FLOP, no "
                                              "cache helping)"))
    if roofline["issue_tflops"] is not None:
        lines.append(Row("roofline", "issue slots", f"{roofline['issue_tflops']:.1f} TFLOPS "
                                                    f"({100 * roofline['issue_ceiling']:.1f} % of peak, modelled)"))
    if (run := roofline["measured"]) is not None:
        lines.append(Row("roofline", "measured", f"{run['tflops']:.1f} TFLOPS at {_shape(run['shape'])}, "
                                                 f"{run['ratio_to_cublas']:.3f} of cuBLAS ({run['gpu']})"))
    return lines


def _shape(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))
