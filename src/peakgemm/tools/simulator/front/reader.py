"""A place in the tokens of a PTX text, and what every part of the parser does with it."""

from __future__ import annotations

from .ptx import PtxError
from .tokens import Tokens, integer


class Reader:
    """Tokens, read one after the other."""

    def __init__(self, text: str) -> None:
        self.tokens = Tokens(text)
        self.texts, self.count = self.tokens.texts, self.tokens.count
        self.text = text
        self.at = 0

    def fail(self, expected: str) -> PtxError:
        """The error at the token that is next."""
        if self.at >= self.count:
            last = self.tokens.line(self.count - 1) if self.count else 1
            return PtxError(f"PTX line {last}: the text ends where {expected} is expected; the file is cut off")
        line, text = self.tokens.line(self.at), self.texts[self.at]
        return PtxError(f"PTX line {line}: {text!r} where {expected} is expected; mend the PTX text")

    def peek(self) -> str:
        """The next token; empty at the end."""
        return self.texts[self.at]

    def take(self, expected: str = "more text") -> str:
        """The next token, behind which reading goes on."""
        if self.at >= self.count:
            raise self.fail(expected)
        self.at += 1
        return self.texts[self.at - 1]

    def expect(self, text: str) -> None:
        """Pass ``text``, which must come next."""
        if not self.accept(text):
            raise self.fail(repr(text))

    def accept(self, text: str) -> bool:
        """Pass ``text`` where it comes next; whether it did."""
        if self.texts[self.at] == text:
            self.at += 1
            return True
        return False

    def rest_of_line(self) -> list[str]:
        """The tokens up to the end of the line of the last one."""
        line, start = self.tokens.line(self.at - 1), self.at
        while self.at < self.count and self.tokens.line(self.at) == line:
            self.at += 1
        return self.texts[start:self.at]

    def integer(self, most: int | None = None) -> int:
        """An integer literal, perhaps with a sign; with ``most`` one from 0 to that."""
        negative = self.accept("-")
        start = self.at
        value = integer(self.take("an integer"))
        if value is None:
            self.at = start
            raise self.fail("an integer")
        value = -value if negative else value
        if most is not None and not 0 <= value <= most:
            self.at = start
            raise self.fail(f"an integer from 0 to {most:,}")
        return value

    def skip_to(self, end: str) -> None:
        """Pass everything up to ``end``, braces and what is in them included."""
        depth = 0
        while True:
            text = self.take(repr(end))
            depth += (text == "{") - (text == "}")
            if text == end and depth <= 0:
                return

    def skip_parentheses(self) -> None:
        """Pass ``( ... )``, where one comes next."""
        depth = 0
        while True:
            text = self.peek()
            depth += (text == "(") - (text == ")")
            if depth <= 0 and text != ")":
                return
            self.take("')'")
            if depth == 0:
                return

    def skip_statement(self, start: int) -> str:
        """Pass the statement that begins at ``start``, up to its semicolon or before the brace that ends its block;
        its text."""
        self.at, depth = start, 0
        while True:
            text = self.peek()
            if text == "}" and depth == 0 and self.at > start:
                break
            self.take("'}'")
            depth += (text == "{") - (text == "}")
            if text == ";" and depth <= 0:
                break
        return self.excerpt(start, self.at)

    def excerpt(self, first: int, end: int) -> str:
        """The text of some tokens, on one line and without comments."""
        last = self.tokens.starts[end - 1]
        text = self.text[self.tokens.starts[first]:last] + (self.texts[end - 1] if self.texts[end - 1] != ";" else "")
        if "//" in text:
            text = " ".join(line.split("//")[0] for line in text.split("\n"))
        return " ".join(text.split())
