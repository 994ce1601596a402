"""Which instructions a kernel needs to run to its end where it does: for addresses, control flow and synchronisation.

Liveness, backwards over the control flow, with other uses than usual: what an access to memory names as its address,
what a branch, a guard of either, or a barrier reads, and whatever those values are computed from. Data is not: a
kernel whose other instructions are left out computes something else, in the same time, at the same addresses.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from peakgemm.sass.encoding import Register, Word
from peakgemm.sass.program import Program

#: They exchange registers within a warp: what they return counts, as of arithmetic.
_WITHIN_A_WARP = frozenset(("SHFL", "VOTE", "VOTEU", "MATCH", "REDUX", "CREDUX"))
_STORES = frozenset(("STG", "STS", "STL", "ST", "RED", "REDG", "REDS", "ATOM", "ATOMG", "ATOMS"))
#: A register that matters: always (None), or to instructions under a guard, a predicate and its sense. A write under
#: the same guard ends that: `@P1 MOV R2, R9` before `@P1 LDGSTS [R2]`.
_Use = tuple[Register, tuple[Register, bool] | None]
_DATA_AT = 32  # the bit where stores and atomics name the register that goes to memory


def acts(word: Word) -> bool:
    """Whether it does more than write registers: an access to memory, a barrier, a branch."""
    return not word.never and (word.ends_block or (word.access != "" and word.name not in _WITHIN_A_WARP))


def steering(word: Word) -> frozenset[Register]:
    """What an instruction that `acts` reads beside the data that it stores."""
    if word.name not in _STORES:
        return word.reads
    return word.guards.union(*(word.registers(field, number) for field, number in word.operands
                               if field.role in "rx" and not (field.kind == "R" and field.low == _DATA_AT)))


def needed(program: Program, spare: Collection[int] = ()) -> frozenset[int]:
    """The places that must stay, those of every access, barrier and branch among them; of ``spare`` only what returns
    something needed."""
    spared, successors = frozenset(spare), program.successors
    entering: dict[int, frozenset[_Use]] = dict.fromkeys(successors, frozenset())
    before: dict[int, list[int]] = {}
    for block, goes in successors.items():
        for to in goes:
            before.setdefault(to, []).append(block)
    steps = {block: _steps(program, block) for block in successors}
    work, kept = list(successors), dict[int, list[int]]()
    while work:
        block = work.pop()
        leaving = frozenset[_Use]().union(*(entering.get(to, frozenset()) for to in successors[block]))
        found, kept[block] = _through(steps[block], leaving, spared)
        if found != entering[block]:
            entering[block] = found
            work += before.get(block, ())
    return frozenset(place for places in kept.values() for place in places)


class _Step(NamedTuple):
    """What `_through` asks of an instruction."""

    place: int
    written: frozenset[Register]
    guards: frozenset[Register]
    condition: tuple[Register, bool] | None
    acts: bool
    read: frozenset[Register]
    steering: frozenset[Register]


def _steps(program: Program, block: int) -> list[_Step]:
    """The instructions of a block that run, the last first."""
    found = []
    for place in reversed(program.blocks[block]):
        word = program.words[place]
        if not word.never:
            condition = (next(iter(word.guards)), word.negated) if word.guards else None
            sums = word.name == "FFMA"
            found.append(_Step(place, word.writes, word.guards, None if sums else condition, acts(word),
                               frozenset() if sums else word.reads, steering(word)))
    return found


def _through(steps: Sequence[_Step], leaving: frozenset[_Use],
             spared: frozenset[int]) -> tuple[frozenset[_Use], list[int]]:
    """What matters where a block begins, of what does where it ends; and its places that must stay."""
    uses: dict[Register, set[tuple[Register, bool] | None]] = {}
    for register, only in leaving:
        uses.setdefault(register, set()).add(only)
    stay = []
    for step in steps:
        hit = [register for register in step.written if register in uses]
        root = step.acts and step.place not in spared
        if not root and not hit:
            continue
        stay.append(step.place)
        for register in hit:
            left = set() if step.condition is None else uses[register] - {step.condition}
            if left:
                uses[register] = left
            else:
                del uses[register]
        if any(register.kind in ("P", "UP") for register in step.written):  # a condition on it was on another value
            for conditions in uses.values():
                if any(only is not None and only[0] in step.written for only in conditions):
                    conditions -= {only for only in conditions if only is not None and only[0] in step.written}
                    conditions.add(None)
        for register in step.steering if root else step.read:
            uses.setdefault(register, set()).add(None if register in step.guards else step.condition)
    return frozenset((register, only) for register, conditions in uses.items() for only in conditions), stay
