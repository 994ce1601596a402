"""The main loop of a kernel, found in its SASS.

A loop is what the control flow says it is, not what lies between a label and the branch back to it:
ptxas moves cold blocks out of line, ends loops by a branch out and an unconditional one back (on sm_80
the branch out can be a CALL that never returns), and puts other loops inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from .listing import INSTRUCTION_BYTES, Instruction

_Barriers = dict[str, frozenset[int]]
_NEVER_FALLS_THROUGH = frozenset(("BRA", "BRX", "BRXU", "JMP", "JMX", "JMXU", "EXIT", "RET", "KILL"))
_ENDS_BLOCK = _NEVER_FALLS_THROUGH | {"CALL", "BSYNC"}


@dataclass(frozen=True, slots=True)
class Loop:
    """A natural loop: ``header`` is the address that every turn passes, ``instructions`` all that can
    run between one pass and the next, by address, loops inside included."""

    header: int
    instructions: tuple[Instruction, ...]

    @property
    def code_bytes(self) -> int:
        """Size of the loop's code: what the instruction cache must hold."""
        return INSTRUCTION_BYTES * len(self.instructions)


def main_loop(instructions: Iterable[Instruction]) -> Loop | None:
    """The loop that holds the most FFMA of its own, or None where no loop holds one.

    An FFMA belongs to the innermost loop around it, so the loop over K wins over a loop over tiles
    around it, and over the copy loops, without FFMA, inside it.
    """
    return most(loops(instructions))


def most(found: Iterable[tuple[int, Loop]]) -> Loop | None:
    """The loop with the most of what `loops` counted, the shortest of equals; None where none has any."""
    best: tuple[int, int, Loop] | None = None
    for own, loop in found:
        rank = (own, -len(loop.instructions), loop)
        if own and (best is None or rank[:2] > best[:2]):
            best = rank
    return best[2] if best else None


def _is_ffma(instruction: Instruction) -> bool:
    return instruction.is_ffma


def loops(instructions: Iterable[Instruction],
          counted: Callable[[Instruction], bool] = _is_ffma) -> list[tuple[int, Loop]]:
    """Each natural loop, with the number of ``counted`` instructions (FFMA) that lie in no loop inside it."""
    return [found for _, group in groupby(instructions, key=lambda instruction: instruction.function)
            for found in _loops_of(tuple(group), counted)]


def _loops_of(code: Sequence[Instruction], counted: Callable[[Instruction], bool]) -> list[tuple[int, Loop]]:
    """`loops` of one function."""
    blocks = basic_blocks(code)
    if not blocks:
        return []
    successors = successors_of(blocks)
    order = _reverse_postorder(successors)
    dominator = _dominators(successors, order)
    predecessors = _reversed(successors)
    bodies: dict[int, set[int]] = {}
    for block in order:
        for header in successors[block]:
            if _dominates(dominator, header, block):
                # Two branches back to one header are one loop with a `continue`.
                bodies.setdefault(header, {header}).update(_reaching(predecessors, block, header))
    counts = {block: sum(map(counted, blocks[block])) for block in order}
    own = dict.fromkeys(bodies, 0)
    for block in order:
        around = [header for header in bodies if block in bodies[header]]
        if around:
            own[min(around, key=lambda header: len(bodies[header]))] += counts[block]
    return [(own[header], Loop(header, tuple(instruction for block in sorted(body) for instruction in blocks[block])))
            for header, body in bodies.items()]


def basic_blocks(code: Sequence[Instruction]) -> dict[int, tuple[Instruction, ...]]:
    """Basic blocks by their first address, in order of address."""
    leaders = {instruction.target for instruction in code}
    blocks: dict[int, tuple[Instruction, ...]] = {}
    current: list[Instruction] = []
    for instruction in code:
        if current and (instruction.address in leaders or current[-1].base in _ENDS_BLOCK):
            blocks[current[0].address] = tuple(current)
            current = []
        current.append(instruction)
    if current:
        blocks[current[0].address] = tuple(current)
    return blocks


def successors_of(blocks: Mapping[int, tuple[Instruction, ...]],
                  more: Callable[[Instruction], Iterable[int]] = lambda last: ()) -> dict[int, tuple[int, ...]]:
    """Where control goes from each block that the entry reaches.

    ``more`` adds addresses behind a block's last instruction, where the caller knows more of calls and tables of
    branches than the listing says. BSYNC jumps to wherever the BSSY of the same barrier register said; the pairs are
    found by carrying the registers' contents along the control flow, since neither order nor distance tells them.
    """
    addresses = list(blocks)
    after = dict(zip(addresses, [*addresses[1:], None], strict=True))
    successors: dict[int, tuple[int, ...]] = {}
    states: dict[int, _Barriers] = {addresses[0]: {}}
    work = [addresses[0]]
    while work:
        block = work.pop()
        leaving = dict(states[block])
        for instruction in blocks[block]:
            if instruction.base == "BSSY" and instruction.target is not None:
                leaving[instruction.operands[0]] = frozenset((instruction.target,))
        last = blocks[block][-1]
        goes = tuple(dict.fromkeys(address for address in (*_goes(last, after[block], leaving), *more(last))
                                   if address in blocks))
        successors[block] = goes
        for address in goes:
            known = states.get(address)
            joined = leaving if known is None else {
                name: known.get(name, frozenset()) | leaving.get(name, frozenset()) for name in {*known, *leaving}}
            if joined != known:
                states[address] = joined
                work.append(address)
    return successors


def _goes(last: Instruction, after: int | None, barriers: _Barriers) -> list[int]:
    """The addresses that may follow a block's ``last`` instruction."""
    follows = [] if after is None else [after]
    target = [] if last.target is None else [last.target]
    if last.base == "BSYNC":
        return sorted(barriers.get(last.operands[0], ())) or follows
    if last.opcode.startswith(("BRA.DIV", "BRA.CONV")):
        # The slow twin of a warp-wide operation, for a warp that has diverged: no part of the loop.
        return follows
    if last.base == "RET":
        # The label that it names is where addresses count from, not where it goes.
        return []
    if last.base == "CALL":
        return target + follows
    if last.base not in _NEVER_FALLS_THROUGH:
        return follows
    # `@P0 BRA L`, `BRA P0, L` and `BRA.U UP0, L` are conditional; `@!PT` does not occur.
    conditional = last.predicate not in ("", "@PT", "@UPT") or (last.base == "BRA" and len(last.operands) > 1)
    return target + (follows if conditional else [])


def _reversed(successors: dict[int, tuple[int, ...]]) -> dict[int, list[int]]:
    predecessors: dict[int, list[int]] = {block: [] for block in successors}
    for block, goes in successors.items():
        for address in goes:
            predecessors[address].append(block)
    return predecessors


def _reverse_postorder(successors: dict[int, tuple[int, ...]]) -> list[int]:
    entry = next(iter(successors))
    order: list[int] = []
    seen = {entry}
    stack = [(entry, iter(successors[entry]))]
    while stack:
        block, rest = stack[-1]
        fresh = next((address for address in rest if address not in seen), None)
        if fresh is None:
            order.append(block)
            stack.pop()
        else:
            seen.add(fresh)
            stack.append((fresh, iter(successors[fresh])))
    return order[::-1]


def _dominators(successors: dict[int, tuple[int, ...]], order: list[int]) -> dict[int, int]:
    """Each block's immediate dominator (Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm")."""
    rank = {block: position for position, block in enumerate(order)}
    predecessors = _reversed(successors)
    dominator = {order[0]: order[0]}
    changed = True
    while changed:
        changed = False
        for block in order[1:]:
            known = [before for before in predecessors[block] if before in dominator]
            common = known[0]
            for other in known[1:]:
                while common != other:
                    if rank[common] > rank[other]:
                        common = dominator[common]
                    else:
                        other = dominator[other]
            if dominator.get(block) != common:
                dominator[block] = common
                changed = True
    return dominator


def _dominates(dominator: dict[int, int], above: int, block: int) -> bool:
    while block != above and dominator[block] != block:
        block = dominator[block]
    return block == above


def _reaching(predecessors: dict[int, list[int]], latch: int, header: int) -> set[int]:
    """The blocks from which ``latch`` can be reached without passing ``header``."""
    body = {header, latch}
    work = [latch] if latch != header else []
    while work:
        for before in predecessors[work.pop()]:
            if before not in body:
                body.add(before)
                work.append(before)
    return body
