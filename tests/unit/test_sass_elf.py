"""Cubins that are none: a typed error that names the offset, whatever is cut or foreign."""

from __future__ import annotations

import struct

import pytest

from lab.disassembler import _elf
from peakgemm.sass.elf import NOP, BadCubin, Cubin

WORDS = [NOP] * 5


@pytest.fixture
def data() -> bytes:
    return _elf(WORDS, "sm_90")


def test_read(data: bytes) -> None:
    cubin = Cubin.read(data)
    assert cubin.arch == "sm_90"
    assert list(cubin.kernels) == ["k"]
    assert cubin.words() == tuple(WORDS)
    assert cubin.with_words(WORDS) == data
    assert cubin.kernel().registers is None


def test_the_abi_of_cuda_12(data: bytes) -> None:
    old = bytearray(data)
    old[7:9] = 51, 7
    struct.pack_into("<I", old, 48, 0x500 | 90)
    assert Cubin.read(bytes(old)).arch == "sm_90"


@pytest.mark.parametrize(("at", "value", "said"), [
    (0, b"MZ", "offset 0x0: .* is not how a 64-bit little-endian ELF file begins"),
    (4, b"\x01", "offset 0x0"),
    (7, b"\x00", "offset 0x7: OSABI 0, ABI 8 is unknown"),
    (18, b"\x3e\x00", "offset 0x12: machine 62 is not CUDA"),
    (58, b"\x20\x00", "offset 0x3a: section headers of 32 bytes"),
    (62, b"\x63\x00", "offset 0x3e: section 99 holds the names"),
])
def test_foreign(data: bytes, at: int, value: bytes, said: str) -> None:
    with pytest.raises(BadCubin, match=said):
        Cubin.read(data[:at] + value + data[at + len(value):])


def test_cut_anywhere(data: bytes) -> None:
    for size in range(0, len(data), 7):
        with pytest.raises(BadCubin, match=r"offset 0x|less than the header"):
            Cubin.read(data[:size])


def test_code_that_is_not_whole(data: bytes) -> None:
    cubin = Cubin.read(data)
    text = cubin.section(".text.k")
    assert text is not None
    at = data.index(struct.pack("<Q", text.size), len(data) - 64)
    with pytest.raises(BadCubin, match="has 79 bytes, which is not a multiple of 16"):
        _ = Cubin.read(data[:at] + struct.pack("<Q", text.size - 1) + data[at + 8:]).kernels
