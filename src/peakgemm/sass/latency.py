"""How far apart compiled code keeps a fixed-latency instruction and the one that needs its result, sm_90.

The table (latencies.json) holds the smallest distance in cycles that ptxas leaves, over the cubins that
tools/sass_latency.py was given: for each producer, kind of register, kind of dependence, class of consumer and operand.
Where a combination was seldom met, the smallest distance of the producer counts, or of all producers: so the table
errs to the side of no alarm.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from .encoding import Register, Word
from .schedule import queue, reader

TABLE = Path(__file__).with_name("latencies.json")
ARCH = "sm_90"
#: Observations that a combination needs before its own smallest distance counts.
ENOUGH = 100

_FP32 = ("FADD", "FFMA", "FMUL", "FSWZADD")
_FP64 = ("DADD", "DFMA", "DMUL", "DSETP")
_TENSOR = ("HMMA", "IMMA", "DMMA", "BMMA", "QMMA")
_FLOW = ("BRA", "BRX", "EXIT", "CALL", "RET", "BSYNC", "BREAK", "WARPSYNC", "KILL")


@cache
def consumer(name: str) -> str:
    """The class of a consumer: what its pipe is."""
    if queue(name) is not None:
        return reader(name) or "queue"
    for members, label in ((_FP32, "fp32"), (_FP64, "fp64"), (_TENSOR, "mma"), (_FLOW, "flow"), (("IMAD",), "imad")):
        if name in members:
            return label
    return "uniform" if name.startswith("U") else "alu"


def producer(word: Word) -> str:
    """The name of a producer, ``.WIDE`` where it writes more than one register."""
    wide = any(field.role in "wx" and field.width > 1 for field, _ in word.named)
    return f"{word.name}.WIDE" if wide else word.name


def keys(before: Word, after: Word, register: Register) -> Iterator[tuple[str, str, str]]:
    """The combinations that two dependent instructions are, each finest first: for operands and for guards."""
    made = producer(before)
    for kind in kinds(after, register):
        coarse = f"{register.kind} {kind}"
        middle = f"{made} {coarse}"
        operand = slots(after, register) if kind == "raw" else ""
        yield f"{middle} {consumer(after.name)} {operand}".strip(), middle, coarse


def kinds(after: Word, register: Register) -> list[str]:
    """How an instruction depends on one that wrote the register: guard, raw.

    That one result overwrites another needs no distance that compiled code would show: it leaves as little as a cycle.
    """
    found = []
    if register in after.guards:
        found.append("guard")
    if any(register in after.registers(field, number) for field, number in after.operands if field.role in "rx"):
        found.append("raw")
    return found


def slots(word: Word, register: Register) -> str:
    """The operand that reads the register: a, b or c by the place of its field, where it is one of these."""
    return "".join(sorted({{24: "a", 32: "b", 64: "c"}.get(field.low, "-") for field, number in word.operands
                           if field.role in "rx" and register in word.registers(field, number)}))


def shortest_stall(word: Word) -> int:
    """The shortest stall that compiled code gives the opcode; 1 for one that was never met."""
    return _file()["stalls"].get(word.name, 1)


@cache
def _file() -> dict[str, dict[str, int]]:
    return dict(json.loads(TABLE.read_text(encoding="utf-8")))


@cache
def _table() -> dict[str, int]:
    return _file()["cycles"]


def least(before: Word, after: Word, register: Register) -> tuple[int, str]:
    """The cycles that must lie between two dependent instructions, and the row of the table that says so."""
    table, best = _table(), (0, "")
    for names in keys(before, after, register):
        row = next((name for name in names if name in table), None)
        if row is not None and table[row] > best[0]:
            best = table[row], row
    return best
