"""PTX text to tokens with line numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .ptx import PtxError

_TOKEN = re.compile(
    r"""(?P<skip>[ \t\r\f\v]+|//[^\n]*|/\*.*?\*/)|(?P<newline>\n)
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<float>0[fF][0-9a-fA-F]{8}\b|0[dD][0-9a-fA-F]{16}\b|\d+\.\d*(?:[eE][+-]?\d+)?)
    |(?P<number>0[xX][0-9a-fA-F]+U?|\d+U?)
    |(?P<name>[%$_.A-Za-z][\w$.]*(?:::[\w.]+)*)
    |(?P<punct>[{}()\[\]<>,;:@!|+\-=*~&^/?])""",
    re.S | re.X,
)


@dataclass(frozen=True, slots=True)
class Token:
    """A word, number, string or sign, and its line."""

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
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise PtxError(f"PTX line {line}: unexpected character {text[position]!r}; is this PTX text?")
        kind = match.lastgroup or ""
        if kind not in ("skip", "newline"):
            out.append(Token(kind, match[0], line, position))
        line += match[0].count("\n")
        position = match.end()
    return out


