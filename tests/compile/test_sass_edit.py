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
from peakgemm.sass.elf import NOP, Cubin
from peakgemm.sass.hazards import check
from peakgemm.sass.program import Program
from sass_cases import of_rung, program
from tests.support.sass_words import ffma

RUNG = 7


def loop(original: Program) -> range:
    return max(original.loop_blocks, key=len)


def shuffled(original: Program, block: range, steps: int, seed: int) -> list[int]:
    """An order of the block that its dependences allow: neighbours exchanged at random."""
    before = {(each.before, each.after) for each in dependences(original.words[block.start:block.stop])}
    order, random = list(range(len(block))), Random(seed)
    for _ in range(steps):
        at = random.randrange(len(order) - 1)
        if (order[at], order[at + 1]) not in before:
            order[at], order[at + 1] = order[at + 1], order[at]
    return [block.start + place for place in order]


@pytest.mark.parametrize("number", [RUNG, pytest.param(14, marks=pytest.mark.exhaustive)])
def test_reorder_and_retime(number: int) -> None:
    cubin, original = of_rung(number), program(number)
    block = loop(original)
    order = shuffled(original, block, 20 * len(block), seed=3)
    moved = reorder(original, block, order)
    assert order != list(block) and check(moved), "in this order the old control bits do not hold"
    edited = retime(moved, block, original)
    assert check(edited) == []
    timed = retime(original, block)
    before, after = (sum(each.words[place].control.stall for place in block) for each in (original, timed))
    assert check(timed) == [] and after <= before  # no slower than the compiler's
    made = install(cubin, edited)
    assert made != cubin.data and len(made) == len(cubin.data)
    assert Program.of(Cubin.read(made)) == edited


def test_every_exchange_of_neighbours_agrees_with_the_dependences() -> None:
    original = program(RUNG)
    words = [original.words[place] for place in loop(original)]
    dependent = {each.before for each in dependences(words) if each.after == each.before + 1}
    for at, (first, second) in enumerate(pairwise(words)):
        said = difference([first, second], [second, first])
        if at not in dependent:
            assert said is None, f"{at}: {said}"
        elif first != second:
            assert said is not None or first.name == second.name, f"{at}: {first.name} {second.name}"


@pytest.mark.parametrize(("first", "second", "kinds"), [
    ((4, 5, 6, 7), (4, 5, 6, 7), {"WAW"}), ((4, 5, 6, 4), (4, 5, 6, 4), {"RAW", "WAW"}),
    ((4, 5, 6, 7), (5, 8, 9, 10), {"WAR"}), ((4, 5, 6, 7), (8, 5, 6, 7), set()),
])
def test_dependences_of_two(first: tuple[int, ...], second: tuple[int, ...], kinds: set[str]) -> None:
    assert {each.kind for each in dependences([ffma(*first), ffma(*second)])} == kinds


def test_remap() -> None:
    cubin, original = of_rung(RUNG), program(RUNG)
    top = max(each.number for word in original.words for each in word.reads | word.writes if each.kind == "R")
    quads = list(range(4, top - 3, 4))  # renamed in a circle; R0 to R3 stay
    names = {old + at: new + at for old, new in zip(quads, quads[1:] + quads[:1], strict=True) for at in range(4)}
    edited = remap(original, names)
    assert edited != original and check(edited) == []
    assert Program.of(Cubin.read(install(cubin, edited, names))) == edited
    with pytest.raises(Unproved, match="ends with another value"):
        install(cubin, edited)
    assert remap(edited, {new: old for old, new in names.items()}) == original


def test_what_is_refused() -> None:
    cubin, original = of_rung(RUNG), program(RUNG)
    block, words = loop(original), list(original.words)
    group = next(number for word in words for field, number in word.named
                 if field.kind == "R" and field.width == 4 and number != 255 and number > 3)
    for names, says in (({group: group + 1, group + 1: group}, "tears apart"), ({group: group + 1}, "a bijection"),
                        ({1: 2, 2: 1}, "R1 is the stack pointer"),
                        ({group + place: 240 + place for place in range(4)}, "lies beyond")):
        with pytest.raises(InvalidValue, match=says):
            remap(original, names)

    raw = next(each for each in dependences(words[block.start:block.stop]) if each.kind == "RAW")
    order = list(block)
    order.insert(raw.before, order.pop(raw.after))
    with pytest.raises(Unproved, match="ends with another value"):
        reorder(original, block, order)
    with pytest.raises(InvalidValue, match="not a permutation"):
        reorder(original, block, order[:-1])

    place = next(place for place, word in enumerate(words) if word.name == "LDG")
    words[place] = words[place].with_control(write_barrier=7)
    with pytest.raises(Unproved, match="it sets no scoreboard"):
        install(cubin, original.with_words(words))
    with pytest.raises(Unproved, match="its blocks"):
        install(cubin, original.with_words(original.words[:-1]))
    assert install(cubin, original) == cubin.data

    with pytest.raises(InvalidValue, match="code cannot grow"):
        cubin.with_words([*cubin.words(), 0])
    shorter = Cubin.read(cubin.with_words(cubin.words()[:-2]))
    assert [word & 0xFFF for word in shorter.words()[-2:]] == [NOP & 0xFFF] * 2


def test_patch(tmp_path: Path, run) -> None:  # noqa: F811
    cubin, original = of_rung(RUNG), program(RUNG)
    made = install(cubin, retime(original, loop(original)))
    text = patch.make(cubin.data, made)
    head, *rows = map(json.loads, text.splitlines())
    assert (head["cubin"], head["arch"]) == (cubin.digest, "sm_90")
    assert patch.apply(cubin.data, text) == made
    for broken in ("", "{}", text.replace(rows[0]["new"], rows[0]["old"])):
        with pytest.raises(InvalidValue, match="patch"):
            patch.apply(cubin.data, broken)

    old, new, changes = tmp_path / "old.cubin", tmp_path / "new.cubin", tmp_path / "loop.patch"
    old.write_bytes(cubin.data)
    changes.write_text(text)
    assert run("sass", "apply", str(changes), str(old), "--output", str(new))[0] == 0
    assert new.read_bytes() == made and old.read_bytes() == cubin.data
    assert run("sass", "apply", str(changes), str(old), "--output", str(old))[0] == 2  # never in place
    code, _, err = run("sass", "apply", str(changes), str(new), "--output", str(tmp_path / "third"))
    assert code == 2 and "the patch is for the cubin of SHA-256" in err
