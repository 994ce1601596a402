"""Rules of register reads, and maps of registers: on streams worked out by hand, and on those measured on an H100."""

from __future__ import annotations

import pytest

from peakgemm.errors import InvalidValue
from peakgemm.sass.maps import RegisterMap, derived, naive, snake
from peakgemm.sass.register_reads import (
    HALF_RATE,
    KEPLER,
    MAXWELL,
    TWO_BANKS,
    Reads,
    Rule,
    rule_of,
    steady,
)

#: Cycles an FFMA, H100, two warps a scheduler, less 3 / 512 of the loop's own; a, b, c and the reuse bits of each FFMA.
MEASURED = {
    "held a, b even c even": (2.001 - 3 / 512,
        "72 42 4 1; 72 44 6 1; 72 46 8 1; 72 48 10 1; 72 50 12 1; 72 52 14 1; 72 54 16 1; 72 56 18 1; "
        "72 58 20 1; 72 60 22 1; 72 64 24 1; 72 66 26 1; 72 68 28 1; 72 70 30 1; 72 72 32 1; 72 42 34 1"),
    "held a, ee ee oo oo": (1.500 - 3 / 512,
        "72 42 4 1; 72 44 6 1; 72 41 3 1; 72 43 5 1; 72 46 8 1; 72 48 10 1; 72 45 7 1; 72 47 9 1; "
        "72 50 12 1; 72 52 14 1; 72 49 11 1; 72 51 13 1; 72 54 16 1; 72 56 18 1; 72 53 15 1; 72 55 17 1"),
    "three reads, eoo eeo": (1.500 - 3 / 512,
        "48 41 3 0; 50 42 5 0; 52 43 7 0; 54 44 9 0; 56 45 11 0; 58 46 13 0; 60 47 15 0; 64 48 17 0; "
        "66 49 19 0; 68 50 21 0; 70 51 23 0; 72 52 25 0; 42 53 27 0; 44 54 29 0; 46 55 31 0; 48 56 33 0"),
    "random 0": (1.939 - 3 / 512,
        "61 44 21 0; 42 43 26 0; 70 64 8 0; 48 50 74 0; 44 52 107 0; 60 67 38 0; 51 66 95 0; 65 44 103 0; "
        "72 64 23 0; 51 59 86 0; 55 42 11 0; 49 41 119 0; 56 45 81 0; 43 57 28 0; 65 61 19 0; 46 42 31 0"),
    "random 18": (1.249 - 3 / 512,
        "72 70 81 2; 41 70 20 0; 59 56 3 3; 59 56 83 3; 59 56 85 0; 65 46 80 0; 71 43 8 1; 71 51 5 1; "
        "71 47 34 0; 56 53 14 3; 56 53 33 2; 55 53 79 1; 55 64 97 3; 55 64 38 0; 49 44 27 3; 49 44 39 0"),
}


def stream(text: str) -> list[Reads]:
    found = []
    for one in text.split("; "):
        a, b, c, reuse = (int(word) for word in one.split())
        found.append(Reads((a, b, c), reuse))
    return found


def cycles_per_instruction(loop: list[Reads], rule: Rule, turns: int = 2) -> float:
    steps = [step for turn in steady(loop, rule, turns) for step in turn if step is not None]
    return sum(step.cycles for step in steps) / len(steps)


@pytest.mark.parametrize(("measured", "text"), MEASURED.values(), ids=MEASURED)
def test_against_an_h100(measured: float, text: str) -> None:
    assert cycles_per_instruction(stream(text), TWO_BANKS, turns=6) == pytest.approx(measured, abs=0.015)


@pytest.mark.parametrize(("arch", "rule"), [
    ("sm_35", KEPLER), ("sm_52", MAXWELL), ("sm_61", MAXWELL), ("sm_70", HALF_RATE), ("sm_80", HALF_RATE),
    ("sm_86", TWO_BANKS), ("sm_90a", TWO_BANKS), ("sm_120", TWO_BANKS)])
def test_rule_of(arch: str, rule: Rule) -> None:
    assert rule_of(arch) is rule


@pytest.mark.parametrize(("arch", "says"), [("sm_42", "no rule for the register reads of 'sm_42'"),
                                            ("90", "'90' is not the name of an architecture")])
def test_no_rule(arch: str, says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        rule_of(arch)


def test_banks() -> None:
    # Kepler: even and odd registers of each half of eight; neighbours two apart share a bank.
    assert [KEPLER.bank(register) for register in range(9)] == [0, 1, 0, 1, 2, 3, 2, 3, 0]
    assert [MAXWELL.bank(register) for register in range(6)] == [0, 1, 2, 3, 0, 1]
    assert [TWO_BANKS.bank(register) for register in range(3)] == [0, 1, 0]


@pytest.mark.parametrize(("rule", "registers", "cycles"), [
    (KEPLER, (0, 1, 4), 1), (KEPLER, (0, 2, 4), 2), (KEPLER, (0, 2, 8), 3), (KEPLER, (0, 0, 8), 2),
    (MAXWELL, (0, 1, 2), 1), (MAXWELL, (0, 4, 2), 2), (MAXWELL, (0, 4, 8), 3),
    (HALF_RATE, (0, 2, 1), 2), (HALF_RATE, (0, 2, 4), 3),
    (TWO_BANKS, (0, 1, None), 1), (TWO_BANKS, (0, 2, None), 2), (TWO_BANKS, (0, 2, 4), 3), (TWO_BANKS, (0, 2, 1), 2),
])
def test_one_instruction_again_and_again(rule: Rule, registers: tuple[int, int, int], cycles: int) -> None:
    assert cycles_per_instruction([Reads(registers)], rule, turns=4) == cycles


def test_what_is_told_of_a_step() -> None:
    reader = MAXWELL.reader()
    first, second = reader.read((0, 4, 1), 1), reader.read((0, 4, 8))
    # Slots a and b meet in bank 0. Then a is held, and b and c meet.
    assert (first.cycles, first.cached, first.waited) == (2, 0, 0b011)
    assert (second.cycles, second.cached, second.waited) == (2, 0b001, 0b110)


def test_what_reads_nothing_leaves_its_cycle_to_others() -> None:
    even = Reads((2, 4, None))
    assert cycles_per_instruction([even, even], TWO_BANKS) == 2
    turns = steady([even, None], TWO_BANKS)
    assert [[step and step.cycles for step in turn] for turn in turns] == [[1, None], [1, None]]


# ---- register maps of a thread tile: those found by search read without a conflict, the naive ones do not

@pytest.mark.parametrize("arch", ["sm_35", "sm_52", "sm_61", "sm_70", "sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize("tile", [(4, 4), (8, 8), (12, 16)], ids=str)
def test_derived_maps(arch: str, tile: tuple[int, int]) -> None:
    rule = rule_of(arch)
    found = derived(rule, *tile)
    assert found.late() == {}
    assert found.cycles_per_ffma == rule.issue
    registers = [*found.a, *found.b, *(one for row in found.c for one in row)]
    assert len(set(registers)) == len(registers) == tile[0] + tile[1] + tile[0] * tile[1]
    # Loads of 128 bits fill aligned quads.
    for fragment in (found.a, found.b):
        assert all(fragment[i] % 4 == i % 4 and fragment[i] - fragment[0] >= i for i in range(len(fragment)))


@pytest.mark.parametrize(("arch", "late"), [("sm_35", 64), ("sm_52", 60), ("sm_90", 8)])
def test_the_naive_map_waits(arch: str, late: int) -> None:
    found = naive(rule_of(arch), 8, 8)
    assert len(found.late()) == late
    assert found.cycles_per_ffma > 1.1


def test_an_accumulator_in_its_operands_bank_is_late() -> None:
    found = derived(rule_of("sm_52"), 8, 8)
    banks = [found.rule.bank(register) for row in found.c for register in row]
    assert [banks.count(bank) for bank in range(4)] == [16] * 4  # dealt evenly
    row = list(found.c[2])
    row[3] = found.b[3] + 4 * 64
    assert (2, 3) in RegisterMap(found.rule, found.a, found.b, (*found.c[:2], tuple(row), *found.c[3:])).late()


@pytest.mark.parametrize(("tile", "says"), [
    ((8, 6), "tile 8x6"), ((0, 8), "multiples of 4"), ((32, 16), "256 accumulators")])
def test_tiles_that_are_refused(tile: tuple[int, int], says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        derived(rule_of("sm_90"), *tile)


def test_snake() -> None:
    assert list(snake(2, 3)) == [(0, 0), (0, 1), (0, 2), (1, 2), (1, 1), (1, 0)]
