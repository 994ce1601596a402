"""The register-bank model on snippets short enough to work out by hand."""

from __future__ import annotations

import pytest

from peakgemm.errors import InvalidValue
from peakgemm.sass.banks import BankModel, bank_model, marks, read_steps
from peakgemm.sass.listing import Instruction, parse
from peakgemm.sass.register_reads import rule_of


def code(*lines: str) -> tuple[Instruction, ...]:
    return parse("\n".join(f"/*{16 * n:04x}*/ {line} ;" for n, line in enumerate(lines)))


def model(*lines: str, arch: str = "sm_90") -> BankModel:
    found = bank_model(code(*lines), arch)
    assert found is not None
    return found


@pytest.mark.parametrize(("ffma", "wide", "narrow"), [
    # Cycles with 32 lanes a sub-partition (one read per bank a cycle) and with 16 (two cycles anyway).
    ("FFMA R0, R2, R4, R6", 3, 3),
    ("FFMA R0, R2, R4, R7", 2, 2),
    ("FFMA R1, R3, R5, R7", 3, 3),
    ("FFMA R0, R2, R5, R7", 2, 2),
    ("FFMA R0, R2, R5, RZ", 1, 2),
    ("FFMA R0, R2, c[0x0][0x160], R5", 1, 2),
    ("FFMA R0, R2, UR4, R4", 2, 2),
    ("FFMA R0, R2, 1.5, R4", 2, 2),
    ("FFMA R0, -R2, |R5|, R7", 2, 2),
    # One register in two slots is one read.
    ("FFMA R0, R2, R2, R5", 1, 2),
])
def test_one_ffma(ffma: str, wide: int, narrow: int) -> None:
    for arch in ("sm_86", "sm_89", "sm_90", "sm_100", "sm_120"):
        assert model(ffma, arch=arch).cycles == wide
    for arch in ("sm_70", "sm_75", "sm_80"):
        assert model(ffma, arch=arch).cycles == narrow


def test_row_held_in_the_reuse_cache() -> None:
    # A held, B and C of opposite parity: after the first, none conflicts.
    found = model("FFMA R20, R2.reuse, R8, R21", "FFMA R23, R2.reuse, R9, R22", "FFMA R25, R2, R10, R25")
    # First: R2 and R8 share bank 0. Second and third: R2 comes from the cache.
    assert (found.ffmas, found.cycles, found.conflicts, found.reuse_hits) == (3, 4, 1, 2)
    assert found.cycles_per_ffma == pytest.approx(4 / 3)
    assert found.ceiling == pytest.approx(3 / 4)


def test_snake_order_has_no_conflicts() -> None:
    # Two rows by two columns: parity(C) opposite to parity(B), B kept across the turn.
    found = model("FFMA R21, R3.reuse, R8, R21", "FFMA R22, R3, R9.reuse, R22", "FFMA R24, R5.reuse, R9, R24",
                  "FFMA R25, R5, R8, R25")
    # First: R3 and R21 share bank 1. Then R3 is held; R9 is held while R5 is read; R5 is held.
    assert (found.cycles, found.conflicts, found.reuse_hits) == (5, 1, 3)


def test_same_parity_of_b_and_c() -> None:
    # What float4 stores of C lead to: C(i, j) is where B(j) is. Even and odd columns in turn, each leaves room for the
    # next (1.01 cycles an FFMA on an H100); two of each in turn do not (1.5).
    row = [f"FFMA R{32 + j}, R3.reuse, R{8 + j}, R{32 + j}" for j in range(8)]
    assert (model(*row).conflicts, model(*row).cycles) == (0, 8)
    assert model(*(row[j] for j in (0, 2, 1, 3, 4, 6, 5, 7))).cycles == 12
    # Where an FFMA takes two cycles anyway, two reads of a bank are no conflict.
    assert model(*row, arch="sm_80").cycles == 16


def test_entry_is_lost_without_reuse() -> None:
    # The second read is served and, having no .reuse, is the last that is.
    found = model("FFMA R0, R2.reuse, R5, RZ", "FFMA R0, R2, R4, RZ", "FFMA R0, R2, R4, RZ")
    assert (found.reuse_hits, found.cycles) == (1, 1 + 1 + 2)


def test_entry_is_lost_to_another_register_of_its_bank() -> None:
    lines = ("FFMA R0, R2.reuse, R5, RZ", "FFMA R0, {}, R4, RZ", "FFMA R0, R2, R4, RZ")
    for other, hits in (("R6", 0), ("R7", 1)):
        assert model(*(line.format(other) for line in lines)).reuse_hits == hits
        # sm_80 has one entry a slot.
        assert model(*(line.format(other) for line in lines), arch="sm_80").reuse_hits == 0


def test_entry_belongs_to_its_slot() -> None:
    found = model("FFMA R0, R2.reuse, R5, RZ", "FFMA R0, R4, R2, RZ")
    assert (found.reuse_hits, found.cycles) == (0, 3)


@pytest.mark.parametrize(("between", "hits"), [
    # Memory, barriers and what never runs leave the cache alone.
    ("LDS.128 R12, [R9]", 1), ("STG.E desc[UR8][R6.64], R9", 1), ("BAR.SYNC.DEFER_BLOCKING 0x0", 1),
    ("@!PT LDS RZ, [RZ]", 1), ("LDGSTS.E [R9], desc[UR8][R6.64]", 1), ("NOP", 1),
    # Arithmetic reads the slots as FFMA does; constants, RZ and predicates read nothing.
    ("IADD3 R9, R6, 0x1, RZ", 0), ("IADD3 R9, P0, P1, R6, R11, RZ", 0), ("ISETP.GE.AND P0, PT, R6, UR4, PT", 0),
    # An odd register leaves the even bank's entry alone.
    ("IADD3 R9, R9, 0x1, RZ", 1), ("ISETP.GE.AND P0, PT, R9, UR4, PT", 1),
    ("IADD3 R9, RZ, R9, R11", 1), ("UIADD3 UR4, UR4, 0x1, URZ", 1), ("FADD R9, R2.reuse, R9", 1),
    ("CS2R R10, SRZ", 1),
    # MOV reads by slot b.
    ("MOV R9, R11", 1),
])
def test_other_instructions(between: str, hits: int) -> None:
    found = bank_model(code("FFMA R0, R2.reuse, R5, RZ", between, "FFMA R0, R2, R4, RZ"), "sm_90")
    assert found is not None
    # A hit of the instruction between is not an FFMA's, so at most the last FFMA has one.
    assert (found.ffmas, found.reuse_hits) == (2, hits)


def test_mov_reads_slot_b() -> None:
    assert model("FFMA R0, R2, R5.reuse, RZ", "MOV R9, R11", "FFMA R0, R2, R5, RZ").reuse_hits == 0
    assert model("MOV R9, R5.reuse", "FFMA R0, R3, R5, RZ").reuse_hits == 1


def test_moved() -> None:
    found = model("FFMA R71, R16, R20, R208", "FFMA R0, R16, R20, R0", "FFMA R1, R16, R20, RZ",
                  "FFMA R2, R16, R20, -R2")
    # RZ is no accumulator, so nothing moved.
    assert found.moved == 0.25


def test_where_it_does_not_apply() -> None:
    assert bank_model(code("LDS R0, [R1]"), "sm_90") is None
    assert bank_model(code("FFMA2 R0, R2, R4, R0"), "sm_100") is None
    with pytest.raises(InvalidValue, match="no rule for the register reads of 'sm_42'"):
        bank_model((), "sm_42")


def test_other_instructions_take_an_issue_slot() -> None:
    # Even registers twice: the LDS between leaves the bank a cycle, which is no FFMA's.
    assert model("FFMA R0, R3.reuse, R4, R6", "FFMA R2, R3.reuse, R8, R10").cycles == 4
    assert model("FFMA R0, R3.reuse, R4, R6", "LDS R20, [R21]", "FFMA R2, R3.reuse, R8, R10",
                 "LDS R22, [R21]").cycles == 2


def test_marks() -> None:
    rule = rule_of("sm_90")
    loop = code("FFMA R0, R3.reuse, R4, R6", "FFMA R2, R3.reuse, R8, R10", "LDS R20, [R21]", "MOV R9, R11")
    turn = read_steps(loop, rule)[-1]
    # R3 is held; of four reads of bank 0 the last comes late; an LDS reads no slot, a MOV slot b.
    assert [marks(one, step, rule) for one, step in zip(loop, turn, strict=True)] == ["r00", "r00!", "", ".1."]
