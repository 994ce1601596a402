"""Decode and encode: the identity, and every register field where nvdisasm sees it."""

from __future__ import annotations

import re
from dataclasses import asdict

import pytest

from lab import disassembler
from peakgemm.errors import InvalidValue
from peakgemm.sass.elf import Cubin
from peakgemm.sass.encoding import ALWAYS, UnknownInstruction, Word, architectures, decode, no_register
from sass_cases import ARCHITECTURES, every_recipe_of_the_library, every_rung, of_rung

# nvdisasm's life ranges leave out predicates moved by a mask, and show the predicate of LDGSTS as written.
CORRECTED = ("P2R", "R2P", "LDGSTS")
FFMA = 0x000FE2000000000500000004030C7223  # FFMA R12, R3, R4, R5


def words(cubin: Cubin) -> list[tuple[str, int, int]]:
    return [(name, place * 16, word) for name in cubin.kernels for place, word in enumerate(cubin.words(name))]


def assert_identity(cubin: Cubin) -> None:
    """Each word put together again from its fields and its control bits is what it was."""
    for name, address, bits in words(cubin):
        word = decode(bits, cubin.arch, address)
        blank = word.with_numbers([0] * len(word.numbers)).with_control(stall=0, wait_mask=0)
        again = blank.with_numbers(word.numbers).with_control(**asdict(word.control)).bits
        assert again == bits, f"{cubin.arch} {name} {address:#x}"


@pytest.mark.parametrize(("number", "arch"), [*((3, arch) for arch in ARCHITECTURES), (15, "sm_90"), (17, "sm_90")])
def test_identity_and_accesses(number: int, arch: str) -> None:
    cubin = of_rung(number, arch)
    assert_identity(cubin)
    shown = disassembler.accesses(cubin.data, arch)
    for name, address, bits in words(cubin):
        word, access = decode(bits, arch), shown.get((name, address))
        if access is None or word.never or word.name in CORRECTED:
            continue
        for mine, theirs in ((word.reads, access.reads), (word.writes, access.writes)):
            assert {str(register) for register in mine if register.kind not in ("B", "SB")} == theirs, (
                f"{arch} {name} {address:#x} {word.name}")


@pytest.mark.exhaustive
def test_identity_everywhere() -> None:
    for cubin in (*every_rung(), *(made for _, made in every_recipe_of_the_library())):
        assert_identity(cubin)


def renamed(word: Word, place: int) -> Word:
    """The word with another register in one field: the next group but one, so that alignment stays."""
    field, number = word.named[place]
    step = 8 if field.kind in ("R", "UR") else 1
    limit = {"R": 240, "UR": 56}.get(field.kind, 6)
    new = number + step if number + step <= limit else number % step
    return word.with_numbers((*word.numbers[:place], new, *word.numbers[place + 1:]))


def used(word: Word) -> list[int]:
    """The fields that name a register."""
    return [place for place, (field, held) in enumerate(word.named)
            if field.kind in ("R", "UR", "P", "UP") and held != no_register(field.kind, word.arch)]


@pytest.mark.parametrize("arch", ["sm_90", pytest.param("sm_75", marks=pytest.mark.exhaustive),
                                  pytest.param("sm_120", marks=pytest.mark.exhaustive)])
def test_a_changed_field_is_what_nvdisasm_prints(arch: str) -> None:
    """One word of each opcode of several rungs; each of its register fields changed; the text changes there alone."""
    fullest: dict[tuple[int, int], Word] = {}  # of each opcode and variant the word that names the most registers
    for number in (0, 3, 5, 11, *{"sm_75": (), "sm_90": (13, 14, 15, 17)}.get(arch, (13, 14))):
        for _, _, bits in words(of_rung(number, arch)):
            word = decode(bits, arch)
            if not word.never and word.name not in ("BRA", "CALL", "RET", "BSSY", "WARPSYNC", "BRX"):
                key = word.opcode, hash(word.layout)
                if key not in fullest or len(used(word)) > len(used(fullest[key])):
                    fullest[key] = word.with_control(reuse=0)
    assert len(fullest) > 60
    jobs = [(word, place) for word in fullest.values() for place in used(word)]
    texts = disassembler.texts([each.bits for word, place in jobs for each in (word, renamed(word, place))], arch)
    for (word, place), before, after in zip(jobs, texts[::2], texts[1::2], strict=True):
        field, held = word.named[place]
        assert before is not None and after is not None, f"{word.name} {field}"
        changed = [pair for pair in zip(re.findall(r"\w+|\W", before), re.findall(r"\w+|\W", after), strict=True)
                   if pair[0] != pair[1]]
        new = renamed(word, place).numbers[place]
        assert changed == [(f"{field.kind}{held}", f"{field.kind}{new}")], f"{before} -> {after} ({field})"


@pytest.mark.parametrize("arch", ["sm_70", "sm_72", "sm_87", "sm_90", "sm_103", "sm_110", "sm_121"])
def test_an_architecture_is_read_by_the_table_of_its_generation(arch: str) -> None:
    word = decode(FFMA, arch)
    assert (word.name, word.guard, word.numbers, word.slots) == ("FFMA", ALWAYS, (12, 3, 4, 5), (3, 4, 5))
    assert [field.low for field, _ in word.named] == [16, 24, 32, 64]
    assert {str(register) for register in word.reads} == {"R3", "R4", "R5"}
    assert {str(register) for register in word.writes} == {"R12"}


def test_what_cannot_be_decoded_or_encoded() -> None:
    with pytest.raises(UnknownInstruction, match=r"sm_90, address 0x120: opcode 0xfff .* is not in the table"):
        decode(0xFFF, "sm_90", 0x120)
    assert decode(0xFFF, "sm_90", 0x120, unknown="{:#x}".format).name == "0x120"
    with pytest.raises(InvalidValue, match="sm_61"):
        decode(0x918, "sm_61")
    assert set(ARCHITECTURES) == set(architectures())
    with pytest.raises(InvalidValue, match="R256 does not fit into the 8 bits"):
        decode(FFMA, "sm_90").with_numbers((256, 3, 4, 5))
