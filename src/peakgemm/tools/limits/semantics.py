"""What SASS computes of integers, predicates and addresses: enough to follow a kernel's branches and accesses.

Registers hold 32 bits as ``uint64``, a row a register, a column a lane of the block. Floats are not computed but where
a division of integers needs them, and what is loaded is zero. An instruction is turned into a function once, from the
text that nvdisasm prints of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import InvalidValue

Step = Callable[[Any], None]  # runs for the lanes of a mask; True: all
Values = Sequence[Any]

_LOW, _32 = np.uint64(0xFFFFFFFF), np.uint64(32)
_OPERAND = re.compile(r"\s*((?:[^,\[\]]|\[[^\]]*\])+?)\s*(?:,|$)")
_PREDICATE = re.compile(r"!?(U?)P(T|\d)")
_REGISTER = re.compile(r"(U?)R(Z|\d+)")
_NUMBER = re.compile(r"-?0x[0-9a-f]+|-?\d+")
_CONSTANT = re.compile(r"c\[0x([04])\]\[(?:RZ|(0x[0-9a-f]+))\]")  # bank 0, and 4 with the addresses of variables
_VARIABLES = 1 << 40  # where they are taken to lie, each at its place in the bank times as much as it may hold
_LARGEST = 1 << 24
_COMPARED = {"LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal, "EQ": np.equal,
             "NE": np.not_equal}


class Unknown(InvalidValue):
    """An instruction that is not modelled."""


class State:
    """Registers of a block of ``lanes`` lanes, whole warps; ``constants`` is bank 0, ``special`` by name."""

    def __init__(self, lanes: int, constants: bytes, special: Mapping[str, Any]) -> None:
        self.lanes, self.constants, self.special = lanes, constants, special
        self.registers = {uniform: np.zeros((258, lanes), np.uint64) for uniform in ("", "U")}
        self.predicates = {uniform: np.zeros((8, lanes), bool) for uniform in ("", "U")}
        for file in self.predicates.values():
            file[7] = True

    def warps(self, mask: Any) -> Any:
        """The mask, widened to whole warps: uniform registers are a warp's."""
        return mask if mask is True else np.repeat(mask.reshape(-1, 32).any(axis=1), 32)

    def first(self, values: Any, mask: Any) -> Any:
        """Of each warp, the value of its first active lane, for all its lanes."""
        lane = np.broadcast_to(mask, self.lanes).reshape(-1, 32).argmax(axis=1)
        return np.repeat(np.broadcast_to(values, self.lanes).reshape(-1, 32)[np.arange(len(lane)), lane], 32)

    def source(self, text: str, wide: bool = False) -> Callable[[], Any]:
        """What reads a source of 32 bits, or 64: a pair of registers. ``-x`` is 2**32 - x, with its carry."""
        if (sign := text[0]) in "-~" and not _NUMBER.fullmatch(text):
            inner, top = self.source(text[1:], wide), np.uint64(0 if wide else 1 << 32)
            return (lambda: top - inner()) if sign == "-" else (lambda: inner() ^ _LOW)
        text = re.sub(r"\.(64|U32|H0_H0)$", "", text.strip("|"))
        if _NUMBER.fullmatch(text):
            held = np.uint64(int(text, 0) & (2**64 - 1 if wide else 2**32 - 1))
        elif match := _CONSTANT.fullmatch(text):
            at = int(match[2] or "0", 16)
            held = np.uint64(_VARIABLES + at * _LARGEST if match[1] == "4" else
                             int.from_bytes(self.constants[at:at + (8 if wide else 4)], "little"))
        elif text.startswith("SR_"):
            special = self.special.get(text[3:], np.uint64(0))
            return lambda: special
        elif (match := _REGISTER.fullmatch(text)) and match[2] != "Z":
            file, row = self.registers[match[1]], int(match[2])
            return (lambda: file[row] | file[row + 1] << _32) if wide else (lambda: file[row])
        elif match or text == "SRZ":
            held = np.uint64(0)
        else:
            raise Unknown(text)
        return lambda: held

    def predicate(self, text: str) -> Callable[[], Any]:
        """What reads a predicate."""
        match = _PREDICATE.fullmatch(text)
        if match is None:
            raise Unknown(text)
        file, row = self.predicates[match[1]], 7 if match[2] == "T" else int(match[2])
        return (lambda: ~file[row]) if text[0] == "!" else (lambda: file[row].copy())

    def target(self, text: str, wide: bool = False) -> Callable[[Any, Any], None]:
        """What writes a register, a pair, or a predicate, of the lanes of a mask."""
        if match := _PREDICATE.fullmatch(text):
            rows = [] if match[2] == "T" else [self.predicates[match[1]][int(match[2])]]
        elif match := _REGISTER.fullmatch(text):
            at = 0 if match[2] == "Z" else int(match[2])
            rows = [] if match[2] == "Z" else list(self.registers[match[1]][at:at + 1 + wide])
        else:
            raise Unknown(text)
        uniform, isbool = match[1], bool(_PREDICATE.fullmatch(text))

        def write(value: Any, mask: Any) -> None:
            for part, row in enumerate(rows):
                word = value if isbool else (value >> _32 if part else value) & _LOW
                np.copyto(row, word, where=self.warps(mask) if uniform else mask)
        return write

    def address(self, text: str) -> Callable[[], Any]:
        """The address of an operand such as ``desc[UR8][R2.64+UR4+0x10]``."""
        inner = text[text.rindex("[") + 1:text.rindex("]")]
        parts, offset, wide = list[Callable[[], Any]](), 0, ".64" in inner
        for part in filter(None, re.split(r"\+", inner)):
            if _NUMBER.fullmatch(part):
                offset += int(part, 0)
            else:
                parts.append(self.source(part, part.endswith(".64") or (wide and part.startswith("U"))))
        base = np.full(self.lanes, offset & (2**64 - 1), np.uint64)
        return lambda: sum((part() for part in parts), base) & (np.uint64(2**64 - 1) if wide else _LOW)


def operands(text: str) -> tuple[str, set[str], list[str]]:
    """Opcode, modifiers and operands of an instruction's text, its guard aside."""
    text = re.sub(r"^@!?U?P\w+\s+|\(\*.*?\*\)", "", text).strip()
    opcode, _, rest = text.partition(" ")
    name, *modifiers = opcode.split(".")
    return name, set(modifiers), [one.replace(".reuse", "") for one in _OPERAND.findall(rest)] if rest.strip() else []


def compiled(text: str, state: State) -> Step | None:
    """The function of an instruction that computes with integers or predicates; None: of floats alone.

    Raises:
        Unknown: the instruction is not modelled.
    """
    name, mods, given = operands(text)
    name = name[1:] if name[0] == "U" and name[1:] in _RULES else name
    rule = _RULES.get(name)
    if rule is None:
        raise Unknown(name)
    if (name, "RCP" in mods) == ("MUFU", False) or (name == "HFMA2" and given[1:3] != ["-RZ", "RZ"]):
        return None
    if name == "HFMA2":  # a constant, as two halves
        high, low = (int(np.float16(one).view(np.uint16)) for one in given[3:])
        given = [given[0], hex(high << 16 | low)]
    try:
        count = 2 if name in ("ISETP", "FSETP", "PLOP3") else 1
        targets = [given.pop(0)]
        while given and _PREDICATE.fullmatch(given[0]) and name != "ELECT" and len(given) > 1 and (
                len(targets) < count or count == 1):
            targets.append(given.pop(0))
        if _PREDICATE.fullmatch(targets[0]) and name in ("LOP3", "R2UR", "SHFL", "VOTE") and "P" not in given[0]:
            targets.insert(0, given.pop(0))
        pair = "64" in mods or (name == "CS2R" and "32" not in mods)
        wide_sources = {0, 1, 2} if pair else {2} if name == "IMAD" and mods & {"WIDE", "HI"} else set[int]()
        writes = [state.target(one, pair or "WIDE" in mods) for one in targets]
        predicates = [state.predicate(one) for one in given if _PREDICATE.fullmatch(one)]
        words = [one for one in given if not _PREDICATE.fullmatch(one) and one != "PR"]
        sources = [state.source(one, place in wide_sources) for place, one in enumerate(words)]
    except (IndexError, ValueError):
        raise Unknown(name) from None

    def step(mask: Any) -> None:
        results = rule(mods, [one() for one in sources], [one() for one in predicates], state, mask)
        for write, value in zip(writes, results if isinstance(results, tuple) else (results,), strict=False):
            write(value, mask)
    return step


def _signed(value: Any) -> Any:
    return ((np.asarray(value, np.uint64) & _LOW).astype(np.int64) ^ 0x80000000) - 0x80000000


def _word(value: Any) -> Any:
    return np.asarray(value).astype(np.int64).astype(np.uint64)


def _float(bits: Any) -> Any:
    return np.asarray(bits & _LOW).astype(np.uint32).view(np.float32)


def _bits(value: Any) -> Any:
    return np.asarray(value, np.float32).view(np.uint32).astype(np.uint64)


def _carries(mods: set[str], predicates: Values) -> Any:
    return sum((one.astype(np.uint64) for one in predicates), np.uint64(0)) if "X" in mods else np.uint64(0)


def _sum(mods: set[str], words: Values, predicates: Values, *_: Any) -> Any:
    total = sum(words, _carries(mods, predicates))
    return total, total >> _32 >= 1, total >> _32 >= 2


def _product(mods: set[str], words: Values, predicates: Values, *_: Any) -> Any:
    a, b, c = words[0] & _LOW, words[1] & _LOW, words[2]
    long = bool(mods & {"WIDE", "HI"})
    product = _word(_signed(a) * _signed(b)) if long and "U32" not in mods else a * b
    total = product + c + _carries(mods, predicates)
    return total >> _32 if "HI" in mods else total, total < product if long else total >> _32 > 0


def _lea(mods: set[str], words: Values, predicates: Values, *_: Any) -> Any:
    a, b, *top, shift = words
    a = a & _LOW
    if "HI" in mods:
        high = _word(_signed(a) >> 32) if "SX32" in mods else top[0] & _LOW
        a = (high << _32 | a) >> (_32 - shift) & _LOW
    else:
        a = a << shift & _LOW
    total = a + b + _carries(mods, predicates)
    return total, total >> _32 > 0


def _shift(mods: set[str], words: Values, *_: Any) -> Any:
    low, by, top = (word & _LOW for word in words)
    by = np.minimum(by & np.uint64(0xFF), np.uint64(63 if mods & {"U64", "S64"} else 32))
    both = top << _32 | low
    if "L" in mods:
        return (both << by) >> _32 if "HI" in mods else low << by
    if "HI" not in mods:
        return both >> by
    return _word(_signed(top) >> np.minimum(by, np.uint64(31)).astype(np.int64)) if "S32" in mods else top >> by


def _logic(lut: int, full: Any, a: Any, b: Any, c: Any) -> Any:
    """The truth table ``lut`` of three words, or predicates (``full``: all bits)."""
    total = a & ~full
    for case in range(8):
        if lut >> case & 1:
            total = total | ((a if case & 4 else a ^ full) & (b if case & 2 else b ^ full)
                             & (c if case & 1 else c ^ full))
    return total


def _lop3(mods: set[str], words: Values, *_: Any) -> Any:
    value = _logic(int(words[3]), _LOW, *(word & _LOW for word in words[:3]))
    return value, value != 0


def _plop3(mods: set[str], words: Values, predicates: Values, *_: Any) -> Any:
    return tuple(_logic(int(lut), np.True_, *predicates[:3]) for lut in words[:2])


def _compare(mods: set[str], words: Values, predicates: Values, *_: Any) -> Any:
    """ISETP, and FSETP: of constants, such as beta, and of floats that nobody computed."""
    a, b = (_float(word) if mods & {"NEU", "GEU", "LTU", "FTZ", "F"} else word & _LOW if "U32" in mods
            else _signed(word) for word in words[:2])
    relation = next(name for name in _COMPARED if {name, f"{name}U"} & mods)
    held = _COMPARED[relation](a, b)
    if "EX" in mods:  # the upper half of 64 bits
        held = np.where(a == b, predicates[1], held)
    join = np.logical_or if "OR" in mods else np.logical_xor if "XOR" in mods else np.logical_and
    return join(held, predicates[0]), join(~held, predicates[0])


def _least(mods: set[str], words: Values, predicates: Values, *_: Any) -> Any:
    values = [words[0] + words[1], words[2]] if len(words) > 2 else words
    a, b = (word & _LOW if "U32" in mods else _signed(word) for word in values)
    return _word(np.where(predicates[-1], np.minimum(a, b), np.maximum(a, b)))


def _permute(mods: set[str], words: Values, *_: Any) -> Any:
    both, total = (words[2] & _LOW) << _32 | words[0] & _LOW, np.uint64(0)
    for place in range(4):
        nibble = words[1] >> np.uint64(4 * place) & np.uint64(0xF)
        byte = both >> (nibble & np.uint64(7)) * np.uint64(8) & np.uint64(0xFF)
        spread = np.where(nibble & np.uint64(8), (byte >> np.uint64(7)) * np.uint64(0xFF), byte)
        total = total | spread << np.uint64(8 * place)
    return total


def _shuffle(mods: set[str], words: Values, predicates: Values, state: State, mask: Any) -> Any:
    lane = np.arange(state.lanes)
    by, within = np.asarray(words[1]).astype(np.int64) & 31, lane % 32
    goes = within ^ by if "BFLY" in mods else within - by if "UP" in mods else within + by if "DOWN" in mods else by
    inside = (goes >= 0) & (goes < 32)
    source = np.where(inside, lane - within + goes, lane)
    return np.broadcast_to(words[0], state.lanes)[source], np.broadcast_to(inside, state.lanes)


def _uniform(mods: set[str], words: Values, predicates: Values, state: State, mask: Any) -> Any:
    chosen = state.first(words[0], mask)
    return chosen, words[0] != chosen  # the predicate: whose value is another


def _vote(mods: set[str], words: Values, predicates: Values, state: State, mask: Any) -> Any:
    active, held = (np.broadcast_to(one, state.lanes).reshape(-1, 32) for one in (mask, predicates[-1]))
    every = (held | ~active).all(axis=1) if "ALL" in mods else (held & active).any(axis=1)
    ballot = ((held & active).astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(axis=1, dtype=np.uint64)
    return np.repeat(ballot, 32), np.repeat(every, 32)


def _to_float(mods: set[str], words: Values, *_: Any) -> Any:
    whole = words[0] & _LOW if "U32" in mods else _signed(words[0])
    near = np.asarray(whole, np.float32)
    up = np.where(near.astype(np.float64) < whole, np.nextafter(near, np.float32(np.inf)), near)
    return _bits(up if "RP" in mods else near)


def _reciprocal(mods: set[str], words: Values, *_: Any) -> Any:
    with np.errstate(all="ignore"):
        return _bits(np.float32(1) / _float(words[0]))


def _to_integer(mods: set[str], words: Values, *_: Any) -> Any:
    with np.errstate(all="ignore"):
        least, most = (0, 2**32 - 1) if "U32" in mods else (-2**31, 2**31 - 1)
        return _word(np.clip(np.nan_to_num(_float(words[0]).astype(np.float64)), least, most))


def _to_bits(mods: set[str], words: Values, predicates: Values, state: State, mask: Any) -> Any:
    bits = np.uint64(1) << np.arange(7, dtype=np.uint64)[:, None]
    return (state.predicates[""][:7] * bits).sum(axis=0, dtype=np.uint64) & words[-1]


_RULES: Mapping[str, Callable[..., Any]] = {
    "IADD3": _sum, "VIADD": _sum, "IMAD": _product, "LEA": _lea, "SHF": _shift, "LOP3": _lop3, "PLOP3": _plop3,
    "ISETP": _compare, "FSETP": lambda mods, *rest: _compare(mods | {"F"}, *rest), "VIMNMX": _least, "IMNMX": _least,
    "VIADDMNMX": _least, "PRMT": _permute, "SHFL": _shuffle, "R2UR": _uniform, "VOTE": _vote, "I2F": _to_float,
    "I2FP": _to_float, "MUFU": _reciprocal, "F2I": _to_integer, "P2R": _to_bits,
    **dict.fromkeys(("MOV", "LDC", "S2R", "S2UR", "CS2R", "HFMA2"), lambda mods, words, *_: words[0]),
    "SEL": lambda mods, words, predicates, *_: np.where(predicates[0], *words),
    "IABS": lambda mods, words, *_: _word(abs(_signed(words[0]))),
    "SETMAXREG": lambda mods, words, predicates, state, mask: np.ones(state.lanes, bool),
    "ELECT": lambda mods, words, predicates, state, mask: np.arange(state.lanes) == state.first(
        np.arange(state.lanes), mask),
}
