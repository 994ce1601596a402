"""Register maps of a thread tile: those found by search read without a conflict, the naive ones do not."""

from __future__ import annotations

import pytest

from peakgemm.errors import InvalidValue
from peakgemm.sass.maps import RegisterMap, derived, naive, snake
from peakgemm.sass.register_reads import rule_of


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
