"""Cubins: the ELF files that ptxas writes, read and written in Python.

A kernel's code is the section ``.text.<kernel>``. Its register count is attribute 0x2f of ``.nv.info``. CUDA 12 writes
OSABI 51, ABI 7 with the architecture in the low byte of the flags, CUDA 13 OSABI 65, ABI 8 with it in the next byte.

Nothing is ever written in place: `Cubin.with_words` returns the bytes of a new file. Code may shrink (what is left over
becomes NOP) but not grow: sections, symbols and debug information would have to move.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..errors import InvalidValue

WORD_BYTES = 16
#: NOP, no stall to speak of, no barrier: bits 105 to 125 are stall 0, no yield, barriers 7.
NOP = 0x000FC00000000000 << 64 | 0x7918
CUDA_MACHINE = 190
_ABIS = {(51, 7): 0, (65, 8): 8}  # OSABI and ABI version, and the bit of the flags where the architecture starts
_HEADER, _SECTION, _SYMBOL = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ")
_REGISTERS = 0x2F
# Attributes of a kernel whose payload holds offsets into its code, by name in cuobjdump.
_OFFSETS = {0x1C: "EXIT_INSTR_OFFSETS", 0x1D: "S2RCTAID_INSTR_OFFSETS", 0x25: "LD_CACHEMOD_INSTR_OFFSETS",
            0x28: "COOP_GROUP_INSTR_OFFSETS", 0x31: "INT_WARP_WIDE_INSTR_OFFSETS", 0x34: "INDIRECT_BRANCH_TARGETS",
            0x39: "MBARRIER_INSTR_OFFSETS", 0x46: "SW_WAR_MEMBAR_SYS_INSTR_OFFSETS"}
_INDIRECT = 0x34
_NO_BITS = 8  # a section without content in the file
_RELOCATIONS = (4, 9)
_FUNCTION = 2  # the type of a symbol


class BadCubin(InvalidValue):
    """Bytes that are no cubin, or a cubin that is truncated; the message names the offset."""


@dataclass(frozen=True, slots=True)
class Section:
    """One section: where its ``size`` bytes lie in the file (``offset``), and the header's other fields as they are."""

    index: int
    name: str
    kind: int
    offset: int
    size: int
    link: int
    info: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """One symbol: ``value`` is where it begins within ``section``, in bytes."""

    name: str
    section: int
    value: int
    info: int


@dataclass(frozen=True, slots=True)
class Attribute:
    """One record of ``.nv.info``."""

    code: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Kernel:
    """The code of a kernel or device function: ``size`` bytes from ``offset`` of the file; registers None: not said."""

    name: str
    offset: int
    size: int
    registers: int | None


@dataclass(frozen=True)
class Cubin:
    """A cubin as it was read: ``data`` are the bytes of the file, ``arch`` is ``sm_NN``."""

    data: bytes
    arch: str
    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]

    @classmethod
    def read(cls, data: bytes) -> Cubin:
        """Parse the bytes of a cubin.

        Raises:
            BadCubin: not an ELF file, of another machine, or truncated.
        """
        if len(data) < _HEADER.size:
            raise BadCubin(f"{len(data)} bytes, which is less than the header of an ELF file ({_HEADER.size}); "
                           "give a whole cubin")
        ident, _, machine, _, _, _, table, flags, *_, entry, count, names = _HEADER.unpack_from(data)
        if ident[:6] != b"\x7fELF\x02\x01":
            raise BadCubin(f"offset 0x0: {ident[:6]!r} is not how a 64-bit little-endian ELF file begins; "
                           "give a cubin, not PTX or a fatbin")
        if machine != CUDA_MACHINE:
            raise BadCubin(f"offset 0x12: machine {machine} is not CUDA ({CUDA_MACHINE}); give a cubin")
        abi = ident[7], ident[8]
        if abi not in _ABIS:
            raise BadCubin(f"offset 0x7: OSABI {abi[0]}, ABI {abi[1]} is unknown; cubins of CUDA 12 (51, 7) and of "
                           "CUDA 13 (65, 8) can be read")
        if entry != _SECTION.size:
            raise BadCubin(f"offset 0x3a: section headers of {entry} bytes, expected {_SECTION.size}")
        if table + count * entry > len(data):
            raise BadCubin(f"offset {table:#x}: {count} section headers end at {table + count * entry:#x}, the file at "
                           f"{len(data):#x}; the cubin is truncated")
        if names >= count:
            raise BadCubin(f"offset 0x3e: section {names} holds the names, of {count} sections")
        raw = [_SECTION.unpack_from(data, table + index * entry) for index in range(count)]
        for index, (_, kind, _, _, offset, size, *_) in enumerate(raw):
            if kind not in (0, _NO_BITS) and offset + size > len(data):
                raise BadCubin(f"offset {offset:#x}: section {index} of {size} bytes ends behind the file "
                               f"({len(data):#x}); the cubin is truncated")
        base, limit = raw[names][4], raw[names][4] + raw[names][5]
        sections = tuple(Section(index, _string(data, base + name, limit), kind, offset, size, link, info)
                         for index, (name, kind, _, _, offset, size, link, info, _, _) in enumerate(raw))
        return cls(data, f"sm_{flags >> _ABIS[abi] & 0xFF}", sections, _symbols(data, sections))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the file, in hexadecimal."""
        return hashlib.sha256(self.data).hexdigest()

    def section(self, name: str) -> Section | None:
        """The section of that name, or None."""
        return next((section for section in self.sections if section.name == name), None)

    def content(self, section: Section) -> bytes:
        """The bytes of a section."""
        return b"" if section.kind == _NO_BITS else self.data[section.offset:section.offset + section.size]

    @cached_property
    def kernels(self) -> Mapping[str, Kernel]:
        """The code sections by the name of their function, in the order of the file.

        Raises:
            BadCubin: code that is not whole instructions.
        """
        counts = self.numbers_by_function(_REGISTERS)
        kernels = {}
        for section in self.sections:
            if not section.name.startswith(".text."):
                continue
            if section.size % WORD_BYTES:
                raise BadCubin(f"offset {section.offset:#x}: {section.name} has {section.size} bytes, which is not a "
                               f"multiple of {WORD_BYTES}; sm_70 and later have {WORD_BYTES} bytes an instruction")
            name = section.name.removeprefix(".text.")
            kernels[name] = Kernel(name, section.offset, section.size, counts.get(name))
        return kernels

    def kernel(self, name: str = "") -> Kernel:
        """The kernel of that name; without one, the only kernel.

        Raises:
            InvalidValue: no such kernel, or several to choose from; the message lists them.
        """
        if not name and len(self.kernels) == 1:
            return next(iter(self.kernels.values()))
        if name not in self.kernels:
            raise InvalidValue(f"kernel {name!r} is not in the cubin; it holds: {', '.join(self.kernels) or 'no code'}")
        return self.kernels[name]

    def functions(self, name: str = "") -> tuple[int, ...]:
        """Where within a kernel's code the device functions begin that are called out of line, in bytes."""
        code = self.section(f".text.{self.kernel(name).name}")
        return tuple(sorted({symbol.value for symbol in self.symbols
                             if code is not None and symbol.section == code.index
                             and symbol.info & 15 == _FUNCTION and symbol.value}))

    def words(self, name: str = "") -> tuple[int, ...]:
        """The 128-bit instruction words of a kernel, in order."""
        kernel = self.kernel(name)
        code = self.data[kernel.offset:kernel.offset + kernel.size]
        return tuple(int.from_bytes(code[at:at + WORD_BYTES], "little") for at in range(0, kernel.size, WORD_BYTES))

    def attributes(self, name: str = "") -> list[Attribute]:
        """The records of ``.nv.info``, or with a kernel's ``name`` those of its own.

        Raises:
            BadCubin: a record that does not end within its section.
        """
        section = self.section(f".nv.info.{name}" if name else ".nv.info")
        return _attributes(self.content(section), section.offset) if section else []

    def numbers_by_function(self, code: int) -> dict[str, int]:
        """What the records ``code`` of ``.nv.info`` hold for each function, such as its registers."""
        numbers = {}
        for attribute in self.attributes():
            if attribute.code == code and len(attribute.payload) >= 8:
                symbol, number = struct.unpack_from("<II", attribute.payload)
                if symbol < len(self.symbols):
                    numbers[self.symbols[symbol].name] = number
        return numbers

    def pinned(self, name: str = "") -> frozenset[int]:
        """Addresses within the kernel that something outside its code names: attributes with offsets, relocations.

        The instructions there must keep their places.
        """
        kernel = self.kernel(name)
        addresses = {offset for attribute in self.attributes(kernel.name) if attribute.code in _OFFSETS
                     for (offset,) in struct.iter_unpack("<I", attribute.payload[:len(attribute.payload) // 4 * 4])}
        code = self.section(f".text.{kernel.name}")
        for section in self.sections:
            if section.kind in _RELOCATIONS and code is not None and section.info == code.index:
                content, size = self.content(section), 24 if section.kind == 4 else 16
                addresses |= {struct.unpack_from("<Q", content, at)[0]
                              for at in range(0, len(content) - size + 1, size)}
        return frozenset(address for address in addresses if address % WORD_BYTES == 0 and address < kernel.size)

    def indirect_branches(self, name: str = "") -> dict[int, tuple[int, ...]]:
        """Where each indirect branch of a kernel may go, by its address: the compiler's list."""
        targets = {}
        for attribute in self.attributes(self.kernel(name).name):
            at = 0
            while attribute.code == _INDIRECT and at + 12 <= len(attribute.payload):
                address, _, count = struct.unpack_from("<III", attribute.payload, at)
                if at + 12 + 4 * count > len(attribute.payload):
                    raise BadCubin(f"attribute {_INDIRECT:#x} of {name}: {count} targets of the branch at {address:#x} "
                                   "do not fit into it; the cubin is damaged")
                targets[address] = struct.unpack_from(f"<{count}I", attribute.payload, at + 12)
                at += 12 + 4 * count
        return targets

    def with_words(self, words: Sequence[int], name: str = "") -> bytes:
        """A copy of the file with ``words`` as the code of a kernel, filled up with NOP to its length.

        Raises:
            InvalidValue: more words than the kernel has, or one that is not 128 bits.
        """
        kernel = self.kernel(name)
        room = kernel.size // WORD_BYTES
        if len(words) > room:
            raise InvalidValue(f"{len(words)} instructions do not fit: {kernel.name} has {room}, and code cannot grow")
        for place, word in enumerate(words):
            if word >> 128 or word < 0:
                raise InvalidValue(f"instruction {place:#x} is {word:#x}, more than 128 bits")
        code = b"".join(word.to_bytes(WORD_BYTES, "little") for word in (*words, *[NOP] * (room - len(words))))
        return self.data[:kernel.offset] + code + self.data[kernel.offset + kernel.size:]


def _string(data: bytes, at: int, limit: int) -> str:
    end = data.find(b"\0", at, limit)
    if end < 0:
        raise BadCubin(f"offset {at:#x}: a name that does not end within its table; the cubin is damaged")
    return data[at:end].decode("utf-8", "replace")


def _symbols(data: bytes, sections: tuple[Section, ...]) -> tuple[Symbol, ...]:
    symbols = []
    for section in sections:
        if section.kind != 2:
            continue
        if section.link >= len(sections):
            raise BadCubin(f"section {section.index}: its names lie in section {section.link} of {len(sections)}")
        names = sections[section.link]
        for at in range(section.offset, section.offset + section.size - _SYMBOL.size + 1, _SYMBOL.size):
            place, info, _, where, value, _ = _SYMBOL.unpack_from(data, at)
            name = _string(data, names.offset + place, names.offset + names.size)
            symbols.append(Symbol(name, where, value, info))
    return tuple(symbols)


def _attributes(content: bytes, offset: int) -> list[Attribute]:
    attributes, at = [], 0
    while at + 4 <= len(content):
        form, code, value = struct.unpack_from("<BBH", content, at)
        at += 4
        if form == 4:  # the 16 bits are the size of what follows
            if at + value > len(content):
                raise BadCubin(f"offset {offset + at - 4:#x}: attribute {code:#x} of {value} bytes ends behind its "
                               "section; the cubin is damaged")
            attributes.append(Attribute(code, content[at:at + value]))
            at += value
        elif form in (1, 2, 3):
            attributes.append(Attribute(code, value.to_bytes(2, "little")))
        else:
            raise BadCubin(f"offset {offset + at - 4:#x}: attribute of unknown format {form}")
    return attributes
