"""Decode and encode: the identity, and every register field where nvdisasm sees it."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from lab import disassembler
from peakgemm.errors import InvalidValue
from peakgemm.sass.elf import Cubin
from peakgemm.sass.encoding import ALWAYS, UnknownInstruction, Word, architectures, decode, no_register
from sass_cases import ARCHITECTURES, every_kernel_of_the_library, every_rung, of_rung

# nvdisasm's life ranges leave out predicates moved by a mask, and show the predicate of LDGSTS as written.
CORRECTED = ("P2R", "R2P", "LDGSTS")
FEW = [(3, arch) for arch in ARCHITECTURES] + [(15, "sm_90"), (18, "sm_90")]


def words(cubin: Cubin) -> list[tuple[str, int, int]]:
    return [(name, place * 16, word) for name in cubin.kernels for place, word in enumerate(cubin.words(name))]


def _again(word: Word) -> int:
    """The word put together again from its fields and its control bits."""
    blank = word.with_numbers([0] * len(word.numbers)).with_control(stall=0, wait_mask=0)
    return blank.with_numbers(word.numbers).with_control(**asdict(word.control)).bits


def assert_identity(cubin: Cubin) -> None:
    for name, address, word in words(cubin):
        assert _again(decode(word, cubin.arch, address)) == word, f"{cubin.arch} {name} {address:#x}"


@pytest.mark.parametrize(("number", "arch"), FEW)
def test_identity_and_accesses(number: int, arch: str) -> None:
    cubin = of_rung(number, arch)
    assert cubin.arch == arch
    assert_identity(cubin)
    shown = disassembler.accesses(cubin.data, arch)
    for name, address, word in words(cubin):
        decoded, access = decode(word, arch), shown.get((name, address))
        if access is None or decoded.name in CORRECTED:
            continue
        for mine, theirs in ((decoded.reads, access.reads), (decoded.writes, access.writes)):
            assert {str(one) for one in mine if one.kind not in ("B", "SB")} == theirs, (
                f"{arch} {name} {address:#x} {decoded.name}")


@pytest.mark.exhaustive
def test_identity_of_every_rung() -> None:
    for cubin in every_rung():
        assert_identity(cubin)


@pytest.mark.exhaustive
def test_identity_of_the_library() -> None:
    for cubin in every_kernel_of_the_library():
        assert_identity(cubin)


def other(word: Word, place: int) -> Word:
    """The word with another register in one field: the next group but one, so that alignment stays."""
    field, number = word.named[place]
    step = 8 if field.kind in ("R", "UR") else 1
    limit = {"R": 240, "UR": 56}.get(field.kind, 6)
    new = number + step if number + step <= limit else number % step
    numbers = (*word.numbers[:place], new, *word.numbers[place + 1:])
    return word.with_numbers(numbers)


@pytest.mark.parametrize("arch", ["sm_90", pytest.param("sm_75", marks=pytest.mark.exhaustive),
                                  pytest.param("sm_120", marks=pytest.mark.exhaustive)])
def test_a_changed_field_is_what_nvdisasm_prints(arch: str) -> None:
    """One word of each opcode of several rungs; each of its register fields changed; the text changes there alone."""
    found: dict[tuple[int, int], Word] = {}
    later = {"sm_75": (), "sm_90": (13, 14, 15, 18)}.get(arch, (13, 14))
    for number in (0, 3, 5, 11, *later):
        for _, _, word in words(of_rung(number, arch)):
            decoded = decode(word, arch)
            if not decoded.never and decoded.name not in ("BRA", "CALL", "RET", "BSSY", "WARPSYNC", "BRX"):
                # Of each opcode and variant the word that names the most registers.
                key = decoded.opcode, hash(decoded.layout)
                named = sum(held != no_register(field.kind, arch) for field, held in decoded.named)
                if key not in found or named > sum(held != no_register(field.kind, arch)
                                                   for field, held in found[key].named):
                    found[key] = decoded.with_control(reuse=0)
    assert len(found) > 60
    jobs = [(word, place) for word in found.values() for place, (field, held) in enumerate(word.named)
            if field.kind in ("R", "UR", "P", "UP") and held != no_register(field.kind, arch)]
    texts = disassembler.texts([word.bits for word, place in jobs for word in (word, other(word, place))], arch)
    for (word, place), before, after in zip(jobs, texts[::2], texts[1::2], strict=True):
        field, held = word.named[place]
        new = other(word, place).numbers[place]
        assert before is not None and after is not None, f"{word.name} {field}"
        old_name, new_name = f"{field.kind}{held}", f"{field.kind}{new}"
        changed = [(one, two) for one, two in zip(_split(before), _split(after), strict=True) if one != two]
        assert changed == [(old_name, new_name)], f"{before} -> {after} ({field})"


def _split(text: str) -> list[str]:
    import re

    return re.findall(r"\w+|\W", text)


def test_named_fields_of_ffma() -> None:
    word = decode(0x000FE2000000000500000004030C7223, "sm_90")
    assert (word.name, word.guard, word.numbers) == ("FFMA", ALWAYS, (12, 3, 4, 5))
    assert [field.low for field, _ in word.named] == [16, 24, 32, 64]
    assert {str(one) for one in word.reads} == {"R3", "R4", "R5"}
    assert {str(one) for one in word.writes} == {"R12"}


def test_unknown() -> None:
    with pytest.raises(UnknownInstruction, match=r"sm_90, address 0x120: opcode 0xfff .* is not in the table"):
        decode(0xFFF, "sm_90", 0x120)
    with pytest.raises(InvalidValue, match="sm_61: no encoding table"):
        decode(0x918, "sm_61")
    assert set(ARCHITECTURES) == set(architectures())
    assert decode(0xFFF, "sm_90", 0x120, unknown="{:#x}".format).name == "0x120"


@pytest.mark.parametrize("arch", ["sm_70", "sm_72", "sm_87", "sm_103", "sm_110", "sm_121"])
def test_an_architecture_is_read_by_the_table_of_its_generation(arch: str) -> None:
    word = decode(0x000FE2000000000500000004030C7223, arch)
    assert (word.name, word.numbers, word.slots) == ("FFMA", (12, 3, 4, 5), (3, 4, 5))


def test_a_number_that_does_not_fit() -> None:
    word = decode(0x000FE2000000000500000004030C7223, "sm_90")
    with pytest.raises(InvalidValue, match="R256 does not fit into the 8 bits of a field of FFMA"):
        word.with_numbers((256, 3, 4, 5))
