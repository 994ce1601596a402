"""Declarations of PTX: variables, their initialisers, parameters."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from .ptx import BYTES, Param, PtxError, Reference, Variable
from .reader import Reader
from .tokens import float_value, kind

LARGEST = 1 << 48  # bytes of a variable, elements of a dimension: what is larger is refused when it is read
ALIGNMENTS = tuple(1 << n for n in range(16))
Nested = list["Nested | Entry"]


class Entry:
    """One value of an initialiser: a number, or an address (see `Reference`)."""

    __slots__ = ("addend", "line", "mask", "name", "value")

    def __init__(self, line: int, value: int | float = 0, name: str = "", addend: int = 0, mask: int = 0) -> None:
        self.line, self.value, self.name, self.addend, self.mask = line, value, name, addend, mask


class Declarations(Reader):
    """The part of the parser for declarations."""

    def alignment(self) -> int:
        """The number behind ``.align``."""
        start = self.at
        if (value := self.integer()) not in ALIGNMENTS:
            self.at = start
            raise self.fail("an alignment, a power of two up to 32,768")
        return value

    def variable(self, space: str, extern: bool, prefix: str = "") -> list[Variable]:
        """What follows the state space, to the semicolon."""
        align, element, vector = 1, "", 1
        while self.peek().startswith("."):
            word = self.take()[1:]
            if word == "align":
                align = self.alignment()
            elif word in BYTES and word != "pred":
                element = word
            elif word in ("v2", "v4", "v8"):
                vector = int(word[1])
            elif word == "attribute":
                self.skip_parentheses()
            else:
                self.at -= 1
                raise self.fail("a variable's type")
        if not element:
            raise self.fail("a variable's type")
        found = [self._declarator(space, extern, prefix, element, vector, align)]
        while self.accept(","):
            found.append(self._declarator(space, extern, prefix, element, vector, align))
        self.expect(";")
        return found

    def _declarator(self, space: str, extern: bool, prefix: str, element: str, vector: int, align: int) -> Variable:
        name = self.name("a variable's name")
        shape: list[int] = []
        unsized = False
        while self.accept("["):
            if not shape and self.accept("]"):
                unsized = True
                shape.append(0)
            else:
                shape.append(self.integer(LARGEST))
                self.expect("]")
        size = BYTES[element] * vector
        dimensions = [*shape, vector] if vector > 1 else shape
        values: list[Entry | None] = []
        initialised = self.accept("=")
        if initialised:
            values = self._arranged(self._value(), dimensions, unsized)
            if unsized:
                inner = _product(dimensions[1:])
                shape[0] = dimensions[0] = -(-len(values) // max(inner, 1))
        total = size * _product(shape)
        if total > LARGEST:
            raise self.fail(f"a variable of at most {LARGEST:,} bytes, not {total:,},")
        data, references = self._encoded(values, element)
        dynamic = extern or (unsized and not initialised)
        return Variable(prefix + name, space, 0 if unsized and not initialised else total, max(align, size),
                        data, dynamic, references, tuple(shape), size)

    def name(self, expected: str) -> str:
        """A name that a declaration gives."""
        text = self.take(expected)
        if kind(text) != "name" or text.startswith("."):
            self.at -= 1
            raise self.fail(expected)
        return text

    def _value(self) -> Nested | Entry:
        """One value, or values in braces."""
        if not self.accept("{"):
            return self._entry()
        found: Nested = []
        while not self.accept("}"):
            found.append(self._value())
            if not self.accept(",") and self.peek() != "}":
                raise self.fail("',' or '}'")
        return found

    def _entry(self) -> Entry:
        line = self.tokens.line(min(self.at, self.count - 1))
        negative = self.accept("-")
        what = kind(self.peek())
        if what == "float":
            value = float_value(self.take())
            return Entry(line, -value if negative else value)
        if what == "number":
            number = self.integer()
            if not negative and self.accept("("):  # 0xff00(name): one byte of an address
                entry = self._address(line)
                self.expect(")")
                entry.mask = number
                return entry
            return Entry(line, -number if negative else number)
        if what != "name" or negative:
            raise self.fail("a number or the name of a variable")
        return self._address(line)

    def _address(self, line: int) -> Entry:
        """``name``, ``generic(name)``, ``name[2]``, each perhaps with an offset."""
        name = self.name("the name of a variable")
        if name == "generic" and self.accept("("):
            name = self.name("the name of a variable")
            self.expect(")")
        addend = 0
        while self.peek() in ("+", "-"):
            sign = -1 if self.take() == "-" else 1
            addend += sign * self.integer()
        return Entry(line, name=name, addend=addend)

    def _arranged(self, value: Nested | Entry, shape: Sequence[int], unsized: bool) -> list[Entry | None]:
        """Values in the order of memory; rows that are too short end with None, which is zero."""
        if isinstance(value, Entry):
            return [value]
        out: list[Entry | None] = []
        inner = _product(shape[1:])
        limit = None if unsized or not shape else _product(shape)
        for item in value:
            if isinstance(item, Entry):
                out.append(item)
                continue
            out += [None] * (-len(out) % max(inner, 1))
            row = self._arranged(item, shape[1:], False)
            out += row
        if limit is not None and len(out) > limit:
            raise self.fail(f"an initialiser of at most {limit:,} values, not {len(out):,},")
        return out

    def _encoded(self, values: list[Entry | None], element: str) -> tuple[bytes, list[Reference]]:
        size, out = BYTES[element], bytearray()
        references: list[Reference] = []
        for value in values:
            if value is None:
                out += bytes(size)
            elif value.name:
                shift = (value.mask & -value.mask).bit_length() - 1 if value.mask else 0
                if value.mask not in (0, 0xFF << shift) or (shift % 8 or (value.mask and size != 1)):
                    raise PtxError(f"PTX line {value.line}: mask {value.mask:#x} of {value.name} is not one whole byte "
                                   "of its address; write 0xff, 0xff00, ... in a variable of bytes")
                references.append(Reference(len(out), size, value.name, value.addend, shift, value.line))
                out += bytes(size)
            else:
                out += _bytes(value.value, element)
        return bytes(out), references

    def parameter(self) -> Param:
        """A parameter of a kernel, or a parameter or result of a function."""
        register = self.accept(".reg")
        if not register:
            self.expect(".param")
        element, align, vector = "", 0, 1
        while self.peek().startswith("."):
            word = self.take()[1:]
            if word == "align":
                align = self.alignment()
            elif word in BYTES:
                element = word
            elif word in ("v2", "v4"):
                vector = int(word[1])
            elif word not in ("ptr", "global", "const", "shared", "local", "noalias"):
                self.at -= 1
                raise self.fail("a parameter type")
        if not element:
            raise self.fail("a parameter type")
        name, count = self.name("a parameter name"), 1
        if self.accept("[") and not self.accept("]"):
            count = self.integer(LARGEST)
            self.expect("]")
        size = BYTES[element] * vector * count
        # `.ptr .align n` speaks of the memory pointed to, not of the parameter's place.
        own = BYTES[element] * vector
        return Param(name, element, size, max(align, own) if element == "b8" else own, name if register else "")


def _product(shape: Sequence[int]) -> int:
    out = 1
    for size in shape:
        out *= size
    return out


def _bytes(value: int | float, element: str) -> bytes:
    """A number as an element of a variable; one that is a fraction, of plain bits, is a float of their size."""
    size = BYTES[element]
    if isinstance(value, float) or element in ("f16", "f32", "f64"):
        form = {2: "<e", 4: "<f", 8: "<d"}.get(size)
        if form is not None and not (isinstance(value, float) and element in ("u16", "s16", "b16")):
            try:
                return struct.pack(form, value)
            except OverflowError:
                return struct.pack(form, float("inf") if value > 0 else float("-inf"))
        value = int(value) if value == value and abs(value) != float("inf") else 0
    return (value & (1 << 8 * size) - 1).to_bytes(size, "little")
