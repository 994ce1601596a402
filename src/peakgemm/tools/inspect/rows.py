"""Figures as words: the lines of the terminal's table, of a comparison, and of the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .facts import CODE_ADVICE

Lines = Iterable[tuple[str, str]]  # name and text of the rows of one group


@dataclass(frozen=True, slots=True)
class Row:
    """One line: the group it stands in, what it tells, and the text."""

    group: str
    name: str
    text: str


def rows(facts: Mapping[str, Any]) -> list[Row]:
    """Every figure that is known, by group."""
    groups = {"resources": _resources(facts["resources"]), "code": _code(facts), "main loop": _loop(facts),
              "register reads": _reads(facts["registers_read"]), "roofline": _roofline(facts["roofline"])}
    return [Row(group, name, text) for group, lines in groups.items() for name, text in lines]


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


def _resources(figures: Mapping[str, Any]) -> Lines:
    if figures["registers"] is not None:
        yield "registers a thread", str(figures["registers"])
    if figures["spill_bytes"] is not None:
        yield "spills", f"{figures['spill_bytes']} bytes"
    if figures["local_loads"] or figures["local_stores"] or figures["stack_bytes"]:
        yield "local memory", (f"{figures['stack_bytes'] or 0} bytes of stack, {figures['local_loads']} loads, "
                               f"{figures['local_stores']} stores in the code")
    if figures["threads"] is not None:
        yield "threads a block", str(figures["threads"])
    dynamic = "unknown" if figures["dynamic_shared"] is None else f"{figures['dynamic_shared']:,}"
    yield "shared memory", f"{figures['static_shared']:,} bytes static, {dynamic} dynamic"
    if figures["occupancy"] is not None:
        yield "occupancy", (f"{figures['blocks_per_sm']} blocks of an SM, {figures['warps_per_sm']} warps "
                            f"({100 * figures['occupancy']:.0f} %), by {figures['limited_by']}")


def _code(facts: Mapping[str, Any]) -> Lines:
    """Of a kernel without a loop, all that is said of its code."""
    if facts["loop"] is None:
        yield "instructions", f"{facts['code']['instructions']:,}"
        yield "main loop", "the kernel has no loop"


def _loop(facts: Mapping[str, Any]) -> Lines:
    loop = facts["loop"]
    if loop is None:
        return
    size = loop["code_bytes"]
    fits = "fits" if size <= CODE_ADVICE else "above"
    yield "which", f"at {loop['header']:#06x}, {loop['why']}"
    yield "instructions", f"{loop['instructions']:,} of {facts['code']['instructions']:,}"
    yield "code", f"{size / 1024:.1f} KB ({fits} the {CODE_ADVICE >> 10} KB advised for the instruction cache)"
    if loop["ffma"]:
        yield "FFMA", f"{loop['ffma']:,} ({100 * loop['ffma_fraction']:.1f} % of the issue slots)"
    if loop["tensor"]:
        yield "tensor", str(loop["tensor"])
    for name, counts in (("by pipe", loop["pipes"]), ("by opcode", dict(list(loop["opcodes"].items())[:8]))):
        yield name, ", ".join(f"{what} {count:,}" for what, count in counts.items())
    if loop["widths"]:
        yield "access widths", "; ".join(f"{opcode} " + ", ".join(f"{bits}b x{count}" for bits, count in wide.items())
                                         for opcode, wide in loop["widths"].items())
    if loop["loads_in_a_row"]:
        yield "LDS in a row", str(loop["loads_in_a_row"])
    if loop["live_registers"] is not None:
        yield "live registers", f"{loop['live_registers']} at most"
    yield "control", f"{loop['waits']} instructions wait for a scoreboard, {loop['reuse']} carry .reuse"


def _reads(reads: Mapping[str, Any] | None) -> Lines:
    if reads is not None:
        yield "rule", reads["rule"]
        yield "cycles an FFMA", f"{reads['cycles_per_ffma']:.3f} modelled, {reads['issue_cycles']} at best"
        yield "late FFMA", f"{reads['conflicts']:g} a turn"
        yield "from the reuse cache", f"{reads['reuse_hits']:g} operands a turn"
        yield "accumulators moved", f"{100 * reads['accumulators_moved']:.1f} % of FFMA"


def _roofline(roofline: Mapping[str, Any] | None) -> Lines:
    if roofline is None:
        return
    if roofline["bound_tflops"] is not None:
        yield "bound", (f"{roofline['bound_tflops']:.1f} TFLOPS on {roofline['gpu']} ({roofline['bytes_per_flop']:.4f} "
                        "bytes of global memory a FLOP, no cache helping)")
    if roofline["shared_tflops"] is not None:
        yield "shared memory", (f"{roofline['shared_tflops']:.1f} TFLOPS without bank conflicts; with them: "
                                "peakgemm limits")
    if roofline["issue_tflops"] is not None:
        yield "issue slots", (f"{roofline['issue_tflops']:.1f} TFLOPS ({100 * roofline['issue_ceiling']:.1f} % of "
                              "peak, modelled)")
