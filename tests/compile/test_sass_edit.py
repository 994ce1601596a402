"""Remap, reorder, retime, install, and patches: what is proved is installed, what is not is refused."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from commands import run  # noqa: F401
from peakgemm.errors import InvalidValue
from peakgemm.sass import patch
from peakgemm.sass.dataflow import dependences, difference
from peakgemm.sass.edit import Unproved, install, remap, reorder, retime
from peakgemm.sass.elf import Cubin
from peakgemm.sass.encoding import Register
from peakgemm.sass.hazards import check
from peakgemm.sass.program import Program
from sass_cases import of_rung, program

RUNG = 7


def loop(original: Program) -> range:
    return max(original.loop_blocks, key=len)


def shuffled(original: Program, block: range, steps: int, seed: int) -> list[int]:
    """An order of the block that its dependences allow: neighbours exchanged at random."""
    before = {(one.before, one.after) for one in dependences(original.words[block.start:block.stop])}
    order, random = list(range(len(block))), Random(seed)
    for _ in range(steps):
        at = random.randrange(len(order) - 1)
        if (order[at], order[at + 1]) not in before:
            order[at], order[at + 1] = order[at + 1], order[at]
    return [block.start + place for place in order]


@pytest.mark.parametrize("number", [RUNG, 14])
def test_reorder_and_retime(number: int) -> None:
    cubin, original = of_rung(number), program(number)
    block = loop(original)
    order = shuffled(original, block, 20 * len(block), seed=3)
    assert order != list(block)
    moved = reorder(original, block, order)
    assert check(moved), "in this order the old control bits do not hold"
    edited = retime(moved, block, original)
    assert check(edited) == []
    made = install(cubin, edited)
    assert made != cubin.data and len(made) == len(cubin.data)
    assert Program.of(Cubin.read(made)) == edited
    assert Cubin.read(made).words() == edited.encode()


def test_retime_is_no_slower() -> None:
    original = program(14)
    block = loop(original)
    edited = retime(original, block)
    assert check(edited) == []
    before, after = (sum(one.words[place].control.stall for place in block) for one in (original, edited))
    assert after <= before
    assert install(of_rung(14), edited)


def test_reorder_refuses() -> None:
    original = program(RUNG)
    block = loop(original)
    words = original.words[block.start:block.stop]
    one = next(one for one in dependences(words) if one.kind == "RAW")
    order = list(block)
    order.insert(one.before, order.pop(one.after))
    with pytest.raises(Unproved, match="ends with another value"):
        reorder(original, block, order)
    with pytest.raises(InvalidValue, match="not a permutation"):
        reorder(original, block, order[:-1])


def test_every_exchange_of_neighbours_agrees_with_the_dependences() -> None:
    original = program(RUNG)
    words = [original.words[place] for place in loop(original)]
    found = {one.before for one in dependences(words) if one.after == one.before + 1}
    for at, (first, second) in enumerate(pairwise(words)):
        said = difference([first, second], [second, first])
        if at not in found:
            assert said is None, f"{at}: {said}"
        elif first != second:
            assert said is not None or first.name == second.name, f"{at}: {first.name} {second.name}"


def rotated(original: Program) -> dict[int, int]:
    """Quads of registers renamed in a circle, R0 to R3 left where they are."""
    top = max(one.number for word in original.words for one in word.reads | word.writes if one.kind == "R")
    quads = list(range(4, top - 3, 4))
    return {old + at: new + at for old, new in zip(quads, quads[1:] + quads[:1], strict=True) for at in range(4)}


def test_remap() -> None:
    cubin, original = of_rung(RUNG), program(RUNG)
    names = rotated(original)
    edited = remap(original, names)
    assert edited != original
    assert check(edited) == []
    made = install(cubin, edited, names)
    assert Program.of(Cubin.read(made)) == edited
    with pytest.raises(Unproved, match="ends with another value"):
        install(cubin, edited)
    assert remap(edited, {new: old for old, new in names.items()}) == original


def test_remap_refuses() -> None:
    original = program(RUNG)
    group = next(number for word in original.words for field, number in word.named
                 if field.kind == "R" and field.width == 4 and number != 255 and number > 3)
    with pytest.raises(InvalidValue, match="tears apart"):
        remap(original, {group: group + 1, group + 1: group})
    with pytest.raises(InvalidValue, match="must be a bijection"):
        remap(original, {group: group + 1})
    with pytest.raises(InvalidValue, match="R1 is the stack pointer"):
        remap(original, {1: 2, 2: 1})
    with pytest.raises(InvalidValue, match="lies beyond"):
        remap(original, {group + place: 240 + place for place in range(4)})


def test_install_refuses() -> None:
    cubin, original = of_rung(RUNG), program(RUNG)
    words = list(original.words)
    place = next(place for place, word in enumerate(words) if word.name == "LDG")
    words[place] = words[place].with_control(write_barrier=7)
    with pytest.raises(Unproved, match="it sets no scoreboard"):
        install(cubin, original.with_words(words))
    with pytest.raises(Unproved, match="its blocks"):
        install(cubin, original.with_words(original.words[:-1]))
    assert install(cubin, original) == cubin.data


def test_words_that_do_not_fit() -> None:
    cubin = of_rung(RUNG)
    with pytest.raises(InvalidValue, match="code cannot grow"):
        cubin.with_words([*cubin.words(), 0])
    shorter = Cubin.read(cubin.with_words(cubin.words()[:-2]))
    assert [word & 0xFFF for word in shorter.words()[-2:]] == [0x918, 0x918]


def test_patch(tmp_path: Path, run) -> None:  # noqa: F811
    cubin, original = of_rung(RUNG), program(RUNG)
    made = install(cubin, retime(original, loop(original)))
    text = patch.make(cubin.data, made)
    head, *rows = map(json.loads, text.splitlines())
    assert head["cubin"] == cubin.digest and head["arch"] == "sm_90"
    assert {"address", "old", "new", "was", "is"} == set(rows[0])
    assert patch.apply(cubin.data, text) == made

    old, new, changes = tmp_path / "old.cubin", tmp_path / "new.cubin", tmp_path / "loop.patch"
    old.write_bytes(cubin.data)
    changes.write_text(text)
    assert run("sass", "apply", str(changes), str(old), "--output", str(new))[0] == 0
    assert new.read_bytes() == made and old.read_bytes() == cubin.data
    assert run("sass", "apply", str(changes), str(old), "--output", str(old))[0] == 2
    code, _, err = run("sass", "apply", str(changes), str(new), "--output", str(tmp_path / "third"))
    assert code == 2 and "the patch is for the cubin of SHA-256" in err
    for broken in ("", "{}", text.replace(rows[0]["new"], rows[0]["old"])):
        with pytest.raises(InvalidValue, match="patch"):
            patch.apply(cubin.data, broken)


def test_dependences_of_a_few_words() -> None:
    original = program(RUNG)
    block = original.words[loop(original).start:loop(original).stop]
    first = next(place for place, word in enumerate(block) if word.name == "FFMA")
    mine = block[first]
    again = dependences([mine, mine])
    written = Register("R", mine.numbers[0])
    kinds = {"WAW", "RAW", "WAR"} if mine.numbers[0] == mine.numbers[3] else {"WAW"}
    assert {one.kind for one in again if one.register == written} == kinds - {"WAR"}
