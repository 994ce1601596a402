"""Functions that the device's runtime has: ``printf``, ``assert``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.lanes import Group
from ..core.memory import GLOBAL, LOCAL, SHARED, WINDOW
from ..front.program import FRAME, Block
from ..front.ptx import Param, Vec
from .build import Build
from .frames import into_register, place_of

MOST_TEXT = 1 << 20  # characters that a run prints, as many as a GPU's buffer has bytes
LONGEST = 1 << 16  # characters of one text
_CONVERSION = re.compile(r"%([-+ #0]*)(\*|\d+)?(?:\.(\*|\d+)?)?(hh|h|ll|l|j|z|t|L)?([diouxXeEfFgGaAcsp%])")
U32, U64 = "b32", "b64"


class Call:
    """A call of one of them: its arguments by their number, of each lane."""

    def __init__(self, b: Build, block: Block) -> None:
        self.b, self.ins, self.machine = b, b.program.kernel.instructions[block.end - 1], b.machine
        self.caller = b.program.function_at(block)
        self.slot = b.program.slot[FRAME][1] if self.caller is not None else None

    def argument(self, group: Group, number: int, kind: str) -> NDArray[Any]:
        """One argument of each lane."""
        arguments = self.ins.operands[2]
        assert isinstance(arguments, Vec)
        if number >= len(arguments.items):
            raise self.ins.unknown(f"it has {len(arguments.items)} arguments, {number + 1} or more are wanted")
        size = 8 if kind == U64 else 4
        item = arguments.items[number]
        place = place_of(self.b, self.ins, item, Param("", kind, size, size), self.caller)
        if place is None:
            value = np.asarray(self.b.src(self.ins, item, f"u{8 * size}")(group))
            return np.broadcast_to(value, (group.lanes.n,))
        return np.asarray(self.machine.batch.local_views[size][self._at(group, place) >> (size.bit_length() - 1)])

    def _at(self, group: Group, place: int) -> NDArray[np.int64]:
        frame = 0 if self.slot is None else group.rows["u32"][self.slot].astype(np.int64)
        return np.asarray(group.lanes.lanes * self.machine.batch.local_stride + place + frame)

    def result(self, group: Group, value: NDArray[Any]) -> None:
        """What the call returns, 32 bits."""
        results = self.ins.operands[0]
        assert isinstance(results, Vec)
        if not results.items:
            return
        param = Param("", U32, 4, 4)
        place = place_of(self.b, self.ins, results.items[0], param, self.caller)
        if place is None:
            into_register(self.b, self.ins, results.items[0], param)(group, value.astype(np.uint32))
            return
        self.machine.batch.local_views[4][self._at(group, place) >> 2] = value.astype(np.uint32)

    def bytes_at(self, lane: int, address: int, count: int) -> bytes:
        """Up to ``count`` bytes at a generic address, as one lane sees it; fewer where its memory ends."""
        batch = self.machine.batch
        if SHARED <= address < SHARED + WINDOW:
            start = address - SHARED
            base, size = lane // batch.padded * batch.shared_stride, self.machine.shared_size
            memory = batch.shared_views[1]
        elif LOCAL <= address < LOCAL + WINDOW:
            start, base, size = address - LOCAL, lane * batch.local_stride, self.machine.local_size
            memory = batch.local_views[1]
        else:
            segment = self.machine.arena.find(address, address + 1)
            if segment is None:
                return b""
            start, base, size = address - GLOBAL, 0, segment.end - GLOBAL
            memory = self.machine.arena.bytes
        return memory[base + start:base + max(start, min(start + count, size))].tobytes()

    def text_at(self, group: Group, place: int, address: int) -> str:
        """The characters at an address, up to a null byte."""
        lane, found = int(group.lanes.lanes[place]), b""
        while b"\0" not in found and len(found) < LONGEST:
            more = self.bytes_at(lane, address + len(found), 256)
            found += more
            if len(more) < 256 and b"\0" not in more:
                self.machine.stop("out_of_bounds", self.ins, "a text without an end: "
                                  + self.machine.arena.describe(address, 1), group.lanes.lanes[[place]])
        return found.split(b"\0")[0].decode("utf-8", "replace")


def _printf(call: Call, group: Group) -> None:
    forms, lists = call.argument(group, 0, U64), call.argument(group, 1, U64)
    printed, machine = np.zeros(group.lanes.n, np.int32), call.machine
    for place in range(group.lanes.n):
        form = call.text_at(group, place, int(forms[place]))
        text, printed[place] = _formatted(call, group, place, form, int(lists[place]))
        _keep(machine.printed, text)
    call.result(group, printed)


def _keep(printed: list[str], text: str) -> None:
    """Add what a thread prints, up to a limit."""
    room = MOST_TEXT - sum(map(len, printed))
    if 0 < room < len(text):
        text = f"{text[:room]}\n... more than {MOST_TEXT:,} characters were printed, the rest is left out\n"
    if room > 0:
        printed.append(text)
        if len(printed) > 64:
            printed[:] = ["".join(printed)]


def _formatted(call: Call, group: Group, place: int, form: str, at: int) -> tuple[str, int]:
    """``form`` with the arguments that lie at ``at``, and how many there are."""
    lane, count, end = int(group.lanes.lanes[place]), 0, at

    def word(size: int) -> bytes:
        nonlocal end, count
        end = -(-end // size) * size
        found = call.bytes_at(lane, end, size)
        if len(found) < size:
            call.machine.stop("out_of_bounds", call.ins, f"printf has fewer arguments than {form!r} names",
                              group.lanes.lanes[[place]])
        end, count = end + size, count + 1
        return found

    def whole(size: int, signed: bool) -> int:
        return int.from_bytes(word(size), "little", signed=signed)

    def one(match: re.Match[str]) -> str:
        flags, width, precision, length, letter = match.groups()
        if letter == "%":
            return "%"
        wide = str(whole(4, True)) if width == "*" else width or ""
        dotted = "." in match[0]
        places = str(max(whole(4, True), 0)) if precision == "*" else precision or "0"
        shape = flags + (wide.lstrip("-") if not wide.startswith("-") else wide)
        if int(wide or 0) > LONGEST or int(places) > LONGEST:
            raise call.ins.unknown(f"printf pads to more than {LONGEST} characters")
        exact = f".{places}" if dotted else ""
        if letter in "diouxXc":
            size = 8 if length in ("l", "ll", "j", "z", "t") else 4
            value = whole(size, letter in "di")
            if letter == "c":
                return f"%{shape}c" % chr(value & 255)
            if length in ("h", "hh"):
                bits = 16 if length == "h" else 8
                value &= (1 << bits) - 1
                value -= (value >> bits - 1 << bits) if letter in "di" else 0
            text = f"%{shape}{exact}{'d' if letter in 'iu' else letter}" % value
            return text.replace("0o", "0", 1) if letter == "o" and "#" in flags else text
        if letter == "s":
            return f"%{shape}{exact}s" % call.text_at(group, place, whole(8, False))
        if letter == "p":
            return f"%{shape}s" % f"0x{whole(8, False):x}"
        number = float(np.frombuffer(word(8), np.float64)[0])
        if letter in "aA":
            return number.hex() if letter == "a" else number.hex().upper()
        return f"%{shape}{exact}{letter}" % number

    return _CONVERSION.sub(one, form), count


def _assertion(call: Call, group: Group) -> None:
    places = [call.argument(group, number, U64) for number in (0, 1, 3)]
    line = int(call.argument(group, 2, U32)[0])
    said, file, function = (call.text_at(group, 0, int(addresses[0])) for addresses in places)
    call.machine.stop("assertion", call.ins, f"assertion `{said}` failed at {file}:{line} in {function}",
                      group.lanes.lanes)


BUILTINS: dict[str, Callable[[Call, Group], None]] = {"vprintf": _printf, "__assertfail": _assertion}
