"""The register-bank model on loops short enough to work out by hand."""

from __future__ import annotations

import pytest

from peakgemm.errors import InvalidValue
from peakgemm.sass.banks import BankModel, bank_model, marks, reads_of
from peakgemm.sass.encoding import Word, decode
from peakgemm.sass.register_reads import rule_of, steady
from tests.support.sass_words import ffma, word

RZ = 255


def model(*loop: Word, arch: str = "sm_90") -> BankModel:
    found = bank_model(loop, arch)
    assert found is not None
    return found


@pytest.mark.parametrize(("one", "wide", "narrow"), [
    # Cycles with 32 lanes a sub-partition (one read per bank a cycle) and with 16 (two cycles anyway).
    (ffma(0, 2, 4, 6), 3, 3), (ffma(0, 2, 4, 7), 2, 2), (ffma(1, 3, 5, 7), 3, 3), (ffma(0, 2, 5, 7), 2, 2),
    (ffma(0, 2, 5, RZ), 1, 2),
    # Immediates and uniform registers take a slot and read no bank.
    (word("FFMA immediate", d=0, a=2, c=5), 1, 2), (word("FFMA uniform", d=0, a=2, c=4), 2, 2),
    # One register in two slots is one read.
    (ffma(0, 2, 2, 5), 1, 2),
])
def test_one_ffma(one: Word, wide: int, narrow: int) -> None:
    for arch in ("sm_86", "sm_89", "sm_90", "sm_100", "sm_120"):
        assert model(one, arch=arch).cycles == wide
    for arch in ("sm_70", "sm_75", "sm_80"):
        assert model(one, arch=arch).cycles == narrow


def test_row_held_in_the_reuse_cache() -> None:
    # A held, B and C of opposite parity: after the first, none conflicts.
    found = model(ffma(20, 2, 8, 21, "a"), ffma(23, 2, 9, 22, "a"), ffma(25, 2, 10, 25))
    # First: R2 and R8 share bank 0. Second and third: R2 comes from the cache.
    assert (found.ffmas, found.cycles, found.conflicts, found.reuse_hits) == (3, 4, 1, 2)
    assert found.cycles_per_ffma == pytest.approx(4 / 3)
    assert found.ceiling == pytest.approx(3 / 4)


def test_same_parity_of_b_and_c() -> None:
    # What float4 stores of C lead to: C(i, j) is where B(j) is. Even and odd columns in turn, each leaves room for the
    # next (1.01 cycles an FFMA on an H100); two of each in turn do not (1.5).
    row = [ffma(32 + j, 3, 8 + j, 32 + j, "a") for j in range(8)]
    assert (model(*row).conflicts, model(*row).cycles) == (0, 8)
    assert model(*(row[j] for j in (0, 2, 1, 3, 4, 6, 5, 7))).cycles == 12
    # Where an FFMA takes two cycles anyway, two reads of a bank are no conflict.
    assert model(*row, arch="sm_80").cycles == 16


def test_entry_is_lost_without_reuse() -> None:
    # The second read is served and, having no .reuse, is the last that is.
    found = model(ffma(0, 2, 5, RZ, "a"), ffma(0, 2, 4, RZ), ffma(0, 2, 4, RZ))
    assert (found.reuse_hits, found.cycles) == (1, 1 + 1 + 2)
    other_slot = model(ffma(0, 2, 5, RZ, "a"), ffma(0, 4, 2, RZ))
    assert (other_slot.reuse_hits, other_slot.cycles) == (0, 3)


@pytest.mark.parametrize(("other", "hits"), [(6, 0), (7, 1)])
def test_entry_is_lost_to_another_register_of_its_bank(other: int, hits: int) -> None:
    loop = ffma(0, 2, 5, RZ, "a"), ffma(0, other, 4, RZ), ffma(0, 2, 4, RZ)
    assert model(*loop).reuse_hits == hits
    assert model(*loop, arch="sm_80").reuse_hits == 0  # which has one entry a slot


@pytest.mark.parametrize(("between", "hits"), [
    # Memory, barriers and what never runs leave the cache alone.
    (word("LDS.128", d=12, a=10), 1), (word("STG", a=6, b=10), 1), (word("BAR"), 1), (word("NOP"), 1),
    (word("LDS", negated=True, a=10), 1), (word("LDGSTS", a=6), 1),
    # Arithmetic reads the slots as FFMA does; uniform registers, RZ and predicates read nothing.
    (word("IADD3", d=9, a=6, b=RZ, c=RZ), 0), (word("IADD3 carries", d=9, a=6, b=11, c=RZ), 0),
    (word("ISETP", a=6), 0), (word("ISETP", a=RZ), 1),
    # An odd register leaves the even bank's entry alone.
    (word("IADD3", d=9, a=9, b=RZ, c=RZ), 1), (word("ISETP", a=9), 1), (word("IADD3", d=9, a=RZ, b=9, c=11), 1),
    (word("FADD", d=9, a=2, b=9, reuse="a"), 1), (word("CS2R", d=10), 1),
    # MOV reads by slot b.
    (word("MOV register", d=9, b=10), 1),
])
def test_other_instructions(between: Word, hits: int) -> None:
    found = model(ffma(0, 2, 5, RZ, "a"), between, ffma(0, 2, 4, RZ))
    # A hit of the instruction between is not an FFMA's, so at most the last FFMA has one.
    assert (found.ffmas, found.reuse_hits) == (2, hits)


def test_other_instructions_share_slots_and_leave_cycles() -> None:
    assert model(ffma(0, 2, 5, RZ, "b"), word("MOV register", d=9, b=11), ffma(0, 2, 5, RZ)).reuse_hits == 0
    assert model(word("MOV register", d=9, b=5, reuse="b"), ffma(0, 3, 5, RZ)).reuse_hits == 1
    # Even registers twice: the LDS between leaves the bank a cycle, which is no FFMA's.
    first, second = ffma(0, 3, 4, 6, "a"), ffma(2, 3, 8, 10, "a")
    assert model(first, second).cycles == 4
    assert model(first, word("LDS", d=20, a=21), second, word("LDS", d=22, a=21)).cycles == 2


def test_moved() -> None:
    # RZ is no accumulator, so nothing moved there.
    found = model(ffma(71, 16, 20, 208), ffma(0, 16, 20, 0), ffma(1, 16, 20, RZ), ffma(2, 16, 20, 2))
    assert found.moved == 0.25


def test_where_it_does_not_apply() -> None:
    assert bank_model([word("LDS")], "sm_90") is None
    packed = decode(0xFFF, "sm_100", unknown=lambda address: "FFMA2")
    assert bank_model([packed], "sm_100") is None
    with pytest.raises(InvalidValue, match="no rule for the register reads of 'sm_42'"):
        bank_model((), "sm_42")


def test_marks() -> None:
    rule = rule_of("sm_90")
    loop = ffma(0, 3, 4, 6, "a"), ffma(2, 3, 8, 10, "a"), word("LDS", d=20, a=21), word("MOV register", d=9, b=11)
    turn = steady(map(reads_of, loop), rule)[-1]
    # R3 is held; of four reads of bank 0 the last comes late; an LDS reads no slot, a MOV slot b.
    assert [marks(one, step, rule) for one, step in zip(loop, turn, strict=True)] == ["r00", "r00!", "", ".1."]
