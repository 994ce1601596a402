"""Cubins that are none: a typed error that names the offset, whatever is cut or foreign."""

from __future__ import annotations

import struct

import pytest

from lab.disassembler import _elf
from peakgemm.sass.elf import NOP, BadCubin, Cubin

DATA = _elf([NOP] * 5, "sm_90")


def with_bytes(at: int, value: bytes) -> bytes:
    return DATA[:at] + value + DATA[at + len(value):]


def test_read() -> None:
    cubin = Cubin.read(DATA)
    assert (cubin.arch, list(cubin.kernels), cubin.words(), cubin.kernel().registers) == (
        "sm_90", ["k"], (NOP,) * 5, None)
    assert cubin.with_words([NOP] * 5) == DATA
    of_cuda_12 = with_bytes(7, b"\x33\x07")[:48] + struct.pack("<I", 0x500 | 90) + DATA[52:]
    assert Cubin.read(of_cuda_12).arch == "sm_90"


@pytest.mark.parametrize(("at", "value", "said"), [
    (0, b"MZ", "offset 0x0: .* is not how a 64-bit little-endian ELF file begins"),
    (4, b"\x01", "offset 0x0"),
    (7, b"\x00", "offset 0x7: OSABI 0, ABI 8 is unknown"),
    (18, b"\x3e\x00", "offset 0x12: machine 62 is not CUDA"),
    (58, b"\x20\x00", "offset 0x3a: section headers of 32 bytes"),
    (62, b"\x63\x00", "offset 0x3e: section 99 holds the names"),
])
def test_foreign(at: int, value: bytes, said: str) -> None:
    with pytest.raises(BadCubin, match=said):
        Cubin.read(with_bytes(at, value))


def test_cut_anywhere() -> None:
    for size in range(0, len(DATA), 7):
        with pytest.raises(BadCubin, match=r"offset 0x|less than the header"):
            Cubin.read(DATA[:size])
    size_of_code = DATA.index(struct.pack("<Q", 5 * 16), len(DATA) - 64)
    with pytest.raises(BadCubin, match="has 79 bytes, which is not a multiple of 16"):
        _ = Cubin.read(with_bytes(size_of_code, struct.pack("<Q", 79))).kernels
