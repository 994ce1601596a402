"""PTX text to tokens with line numbers."""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

from .ptx import PtxError

_TOKEN = re.compile(
    r"""(?P<skip>(?:[ \t\r\f\v\n]+|//[^\n]*|/\*.*?\*/)+)
    |(?P<loc>\.loc[ \t]+\d+[ \t]+\d+[^\n]*)
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<float>0[fF][0-9a-fA-F]{8}\b|0[dD][0-9a-fA-F]{16}\b|\d+\.\d*(?:[eE][+-]?\d+)?)
    |(?P<number>0[xX][0-9a-fA-F]+U?|\d+U?)
    |(?P<name>[%$_.A-Za-z][\w$.]*(?:::[\w.]+)*)
    |(?P<punct>[{}()\[\]<>,;:@!|+\-=*~&^/?])""",
    re.S | re.X,
)


class Token(NamedTuple):
    """A word, number, string or sign, and its line; a ``.loc`` is one with all that belongs to it."""

    kind: str
    text: str
    line: int
    start: int


def tokens(text: str) -> list[Token]:
    """All tokens; comments and white space are dropped.

    Raises:
        PtxError: a character that no token starts with.
    """
    out, position, line = [], 0, 1
    for match in _TOKEN.finditer(text):
        start, end = match.span()
        if start != position:
            break
        if match.lastgroup == "skip":
            line += text.count("\n", start, end)
        else:
            out.append(Token(match.lastgroup or "", match[0], line, start))
        position = end
    if position < len(text):
        raise PtxError(f"PTX line {line}: unexpected character {text[position]!r}; is this PTX text?")
    return out


def float_bits(text: str) -> tuple[int, str]:
    """The bits of a literal of kind ``float``, and its type."""
    if text[:2] in ("0f", "0F"):
        return int(text[2:], 16), "f32"
    if text[:2] in ("0d", "0D"):
        return int(text[2:], 16), "f64"
    return struct.unpack("<Q", struct.pack("<d", float(text)))[0], "f64"
