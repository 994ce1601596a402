"""PTX text to tokens and their places."""

from __future__ import annotations

import bisect
import re
import struct

from .ptx import PtxError

# One alternative at the end for whatever no token starts with. Without groups inside: names of groups take four times
# as long.
_TOKEN = re.compile(
    r"""(?:[ \t\r\f\v\n]+|//[^\n]*|/\*.*?\*/)*
    (\.loc[ \t]+\d+[ \t]+\d+(?:[ \t]+\d+)?(?:[ \t]*,[^\n]*)?
    |"(?:[^"\\\n]|\\.)*"
    |0[fF][0-9a-fA-F]{8}\b|0[dD][0-9a-fA-F]{16}\b
    |0[xX][0-9a-fA-F]+U?|0[bB][01]+U?\b
    |\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+\b|\.\d+(?:[eE][+-]?\d+)?\b|\d+U?
    |[%$_A-Za-z][\w$.]*(?:::[\w.]+)*|\.[\w$]+(?:::\w+)*
    |\S)""",
    re.S | re.X,
)
_SIGNS = "{}()[]<>,;:@!|+-=*~&^/?"
_STARTS = "%$_."  # of names, beside letters
_INTEGER = re.compile(r"(0[xX][0-9a-fA-F]+|0[bB][01]+|0[0-7]*|[1-9]\d*)U?")


class Tokens:
    """``texts``: words, numbers, strings and signs, a ``.loc`` being one with all that belongs to it; two empty ones
    end them. ``starts``: where each begins. Comments and white space are dropped.

    Raises:
        PtxError: a character that no token starts with.
    """

    def __init__(self, text: str) -> None:
        matches = list(_TOKEN.finditer(text))
        self.texts = [match[1] for match in matches]
        self.starts = [match.start(1) for match in matches]
        self.count = len(matches)
        self._newlines = [match.start() for match in re.finditer("\n", text)]
        unexpected = [self.texts.index(one) for one in set(self.texts) if not kind(one)]
        if unexpected:
            at = min(unexpected)
            raise PtxError(f"PTX line {self.line(at)}: unexpected character {self.texts[at]!r}; is this PTX text?")
        self.texts += ["", ""]

    def line(self, at: int) -> int:
        """The line of a token, the first one being 1."""
        return bisect.bisect(self._newlines, self.starts[at]) + 1


def kind(text: str) -> str:
    """What a token is: ``name``, ``number``, ``float``, ``string``, ``loc`` or ``sign``; nothing of those: empty."""
    first = text[:1]
    if first.isdigit() or (first == "." and text[1:2].isdigit()):
        exact = text[:2] in ("0f", "0F", "0d", "0D")
        decimal = "." in text or (text[:2] not in ("0x", "0X") and ("e" in text or "E" in text))
        return "float" if exact or decimal else "number"
    if first == '"':
        return "string" if len(text) > 1 else ""
    if first and (first in _STARTS or (first.isascii() and first.isalpha())):
        return "loc" if text[:5] in (".loc ", ".loc\t") else "name"
    return "sign" if first and first in _SIGNS else ""


def integer(text: str) -> int | None:
    """The value of a decimal, hexadecimal, octal (``017``) or binary (``0b101``) literal; None: it is none."""
    match = _INTEGER.fullmatch(text)
    if match is None:
        return None
    digits = match[1]
    return int(digits, 8) if digits[0] == "0" and digits.isdigit() else int(digits, 0)


def float_bits(text: str) -> tuple[int, str]:
    """The bits of a literal of kind ``float``, and its type."""
    if text[:2] in ("0f", "0F"):
        return int(text[2:], 16), "f32"
    if text[:2] in ("0d", "0D"):
        return int(text[2:], 16), "f64"
    return struct.unpack("<Q", struct.pack("<d", float(text)))[0], "f64"


def negated(bits: int, kind: str) -> tuple[int, str]:
    """A float literal behind a minus sign."""
    return bits ^ (1 << (31 if kind == "f32" else 63)), kind


def float_value(text: str) -> float:
    """The number that a literal of kind ``float`` is."""
    bits, kind = float_bits(text)
    form = ("<I", "<f") if kind == "f32" else ("<Q", "<d")
    return float(struct.unpack(form[1], struct.pack(form[0], bits))[0])
