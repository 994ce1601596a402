"""Which instructions a kernel needs to run to its end where it does: for addresses, control flow and synchronisation.

Liveness, backwards over the control flow, with other uses than usual: what an access to memory names as its address, what
a branch, a guard of either, or a barrier reads, and whatever those values are computed from. Data is not among them: a
kernel whose other instructions are left out computes something else, in the same time, at the same addresses.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from .effects import ends_block, space
from .encoding import Register, Word
from .program import Program

#: They exchange registers within a warp: what they return counts, as of arithmetic.
_WITHIN_A_WARP = frozenset(("SHFL", "VOTE", "VOTEU", "MATCH", "REDUX", "CREDUX"))
_STORES = frozenset(("STG", "STS", "STL", "ST", "RED", "REDG", "REDS", "ATOM", "ATOMG", "ATOMS"))
#: A register that matters: always (None), or to instructions under a guard, a predicate and its sense. A write under the
#: same guard ends that: `@P1 MOV R2, R9` before `@P1 LDGSTS [R2]`.
_Use = tuple[Register, tuple[Register, bool] | None]
_DATA_AT = 32  # the bit where stores and atomics name the register that goes to memory


def acts(word: Word) -> bool:
    """Whether it does more than write registers: an access to memory, a barrier, a branch."""
    return not word.never and (ends_block(word) or (space(word) is not None and word.name not in _WITHIN_A_WARP))


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
    work = list(successors)
    while work:
        block = work.pop()
        found, _ = _through(program, block, entering, spared)
        if found != entering[block]:
            entering[block] = found
            work += before.get(block, ())
    return frozenset(place for block in successors for place in _through(program, block, entering, spared)[1])


def _through(program: Program, block: int, entering: Mapping[int, frozenset[_Use]],
             spared: frozenset[int]) -> tuple[frozenset[_Use], list[int]]:
    """What matters where a block begins, and its places that must stay."""
    uses = set[_Use]().union(*(entering.get(to, frozenset()) for to in program.successors[block]))
    stay = []
    for place in reversed(program.blocks[block]):
        word = program.words[place]
        if word.never:
            continue
        condition = (next(iter(word.guards)), word.negated) if word.guards else None
        written = word.writes
        if word.name == "FFMA":
            uses = {(register, only) for register, only in uses if register not in written}
            continue
        root = place not in spared and acts(word)
        if root or any(register in written for register, _ in uses):
            stay.append(place)
            uses = {(register, only) for register, only in uses
                    if register not in written or (condition is not None and only != condition)}
            uses = {(register, None if only is not None and only[0] in written else only) for register, only in uses}
            uses |= {(register, None if register in word.guards else condition)
                     for register in (steering(word) if root else word.reads)}
    return frozenset(uses), stay
