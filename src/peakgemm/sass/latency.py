"""How far apart compiled code keeps a fixed-latency instruction and the one that needs its result, sm_90.

The table (latencies.json) holds the smallest distance in cycles that ptxas leaves, over the cubins that
lab/sass_latency.py was given: for each producer, kind of register and kind of dependence. Where a producer was seldom
met, the smallest distance of all producers counts. Consumers are not told apart: to another pipe ptxas mostly leaves a
cycle more, but which pipe an opcode goes to it decides anew, and rows for pairs gave false alarms on held-out code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from .encoding import C, Register, Word

TABLE = Path(__file__).with_name("latencies.json")
ARCH = "sm_90"
#: Observations that a combination needs before its own smallest distance counts.
ENOUGH = 100
_FP32 = frozenset(("FADD", "FFMA", "FMUL"))


def producer(word: Word) -> str:
    """The name of a producer, ``.WIDE`` where it writes more than one register."""
    wide = any(field.role in "wx" and field.width > 1 for field, _ in word.named)
    return f"{word.name}.WIDE" if wide else word.name


def keys(before: Word, after: Word, register: Register) -> Iterator[tuple[str, str]]:
    """The rows that two dependent instructions fall under, the producer's own first: one pair for each dependence."""
    for kind in kinds(after, register):
        yield f"{producer(before)} {register.kind} {kind}", f"{register.kind} {kind}"


def kinds(after: Word, register: Register) -> list[str]:
    """How an instruction depends on one that wrote the register: guard, raw, or addend (of IMAD, which needs it later).

    That one result overwrites another needs no distance that compiled code would show: it leaves as little as a cycle.
    """
    dependences = ["guard"] if register in after.guards else []
    fields = {field.low for field, number in after.operands
              if field.role in "rx" and register in after.registers(field, number)}
    if fields:
        dependences.append("addend" if after.name == "IMAD" and fields == {C} else "raw")
    return dependences


def shortest_stall(word: Word) -> int:
    """The shortest stall that compiled code gives the opcode; 1 for one that was never met."""
    return _file()["stalls"].get(word.name, 1)


@cache
def _file() -> dict[str, dict[str, int]]:
    return dict(json.loads(TABLE.read_text(encoding="utf-8")))


def least(before: Word, after: Word, register: Register) -> tuple[int, str]:
    """The cycles that must lie between two dependent instructions, and the row of the table that says so."""
    table, best = _file()["cycles"], (0, "")
    for names in keys(before, after, register):
        row = next((name for name in names if name in table), None)
        if row is not None and table[row] > best[0]:
            best = table[row], row
    return best


def safe(before: Word, after: Word, register: Register) -> int:
    """The cycles to leave when a schedule is made: where pipes are told apart, at least what ptxas leaves between them.

    `least` is what the checker demands, the smallest distance to any consumer. A result that goes to another pipe takes
    a cycle or two more.
    """
    kinds_of = kinds(after, register)
    if not kinds_of:
        return 1
    if before.name in _FP32 and after.name in _FP32 and "guard" not in kinds_of:
        return 4
    return max(before.layout.opcode.cycles, 13 if "guard" in kinds_of else 0, least(before, after, register)[0])

