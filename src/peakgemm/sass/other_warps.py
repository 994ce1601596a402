"""The copies of warps that never come to a kernel's main loop, and the kernel without them.

Such warps fill the stages of a ring on mbarriers. Where they copy nothing, a stage is full as soon as one of them has
asked for it: what is left are the protocol and its instructions. Asking for a stage's bytes becomes an arrival that
expects none. What a copying warp stores beside copies (which tile is next) stays, and so does what it reads to wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from .elf import NOP
from .encoding import Word, decode
from .needed import needed
from .program import Program

_ENGINE = frozenset(("UTMALDG", "UBLKCP"))
_LOADS, _STORES = frozenset(("LDS", "LDG")), frozenset(("STS", "STG"))
_ARRIVE, _EXPECTS_NONE = 0x9A7, 1 << 84  # SYNCS.ARRIVE.TRANS64, and the bit that makes it .A1T0: no bytes are named
_BYTES_AT, _RZ = 32, 255
_DATA_AT = 32


def aside(program: Program) -> tuple[range, ...]:
    """The blocks from which control cannot come to the main loop, and to which it cannot come from there."""
    successors = program.successors
    before: dict[int, list[int]] = {}
    for block, goes in successors.items():
        for to in goes:
            before.setdefault(to, []).append(block)
    loop = [block.start for block in program.loop_blocks]
    met = _reached(loop, successors) | _reached(loop, before)
    return tuple(program.blocks[block] for block in sorted(successors) if block not in met)


def without_copies(program: Program, pinned: frozenset[int]) -> dict[int, Word]:
    """What replaces the copies of warps that never come to the main loop: NOPs, and arrivals that expect no bytes.

    ``pinned`` are the addresses of instructions that stay what they are.
    """
    blocks = aside(program)
    copies = {place for block in blocks for place in _copies(program.words, block) if 16 * place not in pinned}
    keep = needed(program, copies)
    found = {place: nop(program.words[place]) for place in copies - keep}
    if any(program.words[place].name in _ENGINE for place in found):
        found |= {place: _expects_none(word) for block in blocks for place in block
                  if (word := program.words[place]).opcode == _ARRIVE and word.name == "SYNCS" and not word.never
                  and 16 * place not in pinned and not word.rest & _EXPECTS_NONE}
    return found


def nop(word: Word) -> Word:
    """A NOP in an instruction's place: with its stall, yield and waits, without its scoreboards."""
    made = decode(NOP, word.arch)
    return replace(made, control=replace(made.control, stall=word.control.stall, yield_=word.control.yield_,
                                         wait_mask=word.control.wait_mask))


def _copies(words: Sequence[Word], block: range) -> list[int]:
    """Copies of a block: asked of the copy engine or of LDGSTS, loads, and stores of what the block has loaded."""
    found, loaded = [], set[object]()
    for place in block:
        word = words[place]
        if word.never:
            continue
        if word.name in _ENGINE or word.name == "LDGSTS" or word.name in _LOADS:
            found.append(place)
        elif word.name in _STORES:
            data = {one for field, number in word.operands if field.kind == "R" and field.low == _DATA_AT
                    for one in word.registers(field, number)}
            if data and data <= loaded:
                found.append(place)
        loaded = loaded | word.writes if word.name in _LOADS else loaded - word.writes
    return found


def _expects_none(word: Word) -> Word:
    return replace(word, rest=word.rest | _EXPECTS_NONE,
                   numbers=tuple(_RZ if field.low == _BYTES_AT else number for field, number in word.named))


def _reached(starts: Sequence[int], goes: Mapping[int, Sequence[int]]) -> frozenset[int]:
    found, work = set(starts), list(starts)
    while work:
        for to in goes.get(work.pop(), ()):
            if to not in found:
                found.add(to)
                work.append(to)
    return frozenset(found)
