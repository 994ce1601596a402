"""The outline of a CUDA source: the kernels that it declares, their templates' parameters, and code of the host.

Compilers alone read C++. This finds what a name expression and a message need: a kernel's namespaces, what a template
asks for, and where host code is. Where macros write kernels, `Outline.complete` says that it has not seen all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from ....runtime.source import COMMENTS_AND_LITERALS, located

_TOKEN = re.compile(r'"C"|""|[A-Za-z_]\w*|\d[\w.]*|::|<<<|\S')
_DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(\w+)[ \t]*(.*)")
_DEFINED = re.compile(r"(!?)\s*defined\s*\(?\s*(\w+)\s*\)?")
_COMPILER = frozenset(("__CUDACC__", "__CUDACC_RTC__", "__CUDA_ARCH__", "__cplusplus"))  # what NVRTC defines
#: Words before a kernel's name that have parentheses of their own.
_ATTRIBUTES = frozenset(("__launch_bounds__", "__cluster_dims__", "__maxnreg__", "__block_size__", "__attribute__",
                         "alignas", "__align__", "decltype"))
_CLOSES = {"(": ")", "[": "]", "{": "}", "<": ">"}


@dataclass(frozen=True, slots=True)
class Declared:
    """A kernel: ``path`` with its namespaces, and the ``parameters`` of its template as they stand (None: it is none).
    """

    path: str
    parameters: tuple[str, ...] | None

    def __str__(self) -> str:
        return self.path if self.parameters is None else f"{self.path}<{', '.join(self.parameters)}>"

    @property
    def needs_arguments(self) -> bool:
        """Whether it is a template some parameter of which has no default."""
        return any("..." not in one and _default(one) is None for one in self.parameters or ())

    @property
    def example(self) -> str:
        """The template with arguments such as it might take: ``rows<float, 8>``."""
        return f"{self.path}<{', '.join(map(_example, self.parameters or ()))}>"


@dataclass(frozen=True, slots=True)
class Outline:
    """``kernels`` in order; ``complete``: no macro writes more; ``host``: the first sign of host code, in words."""

    kernels: tuple[Declared, ...]
    complete: bool
    host: str


def _default(parameter: str) -> str | None:
    """The default of a template's parameter."""
    equals = re.search(r"(?<![=<>!])=(?!=)", parameter)
    return str(parameter[equals.end():].strip()) if equals else None


def _example(parameter: str) -> str:
    if default := _default(parameter):
        return default
    words: list[str] = re.findall(r"\w+|\.\.\.", parameter)
    if words[0] in ("typename", "class"):
        return "float"
    if "template" in words:
        return words[-1]
    if "bool" in words:
        return "true"
    whole = ("int", "unsigned", "long", "short", "char", "auto", "uint", "ulong", "ushort")
    return "8" if any(word in whole or word.endswith("_t") for word in words) else f"{words[0]}(0)"


@lru_cache(maxsize=16)
def outline(text: str, macros: tuple[tuple[str, int], ...] = ()) -> Outline:
    """The outline of joined source ``text`` with ``macros`` defined."""
    plain = COMMENTS_AND_LITERALS.sub(lambda found: found[0] if found[0] == '"C"' else '""' if found[0][0] in "\"'R"
                      else "\n" * found[0].count("\n") or " ", text)
    return _Scan(*_active(plain, {name: str(value) for name, value in macros})).outline()


def _active(text: str, defined: dict[str, str]) -> tuple[str, bool]:
    """The text with directives and what they exclude left empty, as far as can be told; and whether a macro's body has
    a kernel."""
    defined |= dict.fromkeys(_COMPILER, "1")
    out, hidden = [], False
    stack: list[tuple[bool, bool]] = []  # of each #if: whether its present branch counts, whether one did so far
    lines = iter(text.split("\n"))
    for line in lines:
        match = _DIRECTIVE.match(line)
        active = all(now for now, _ in stack)
        if match is None:
            out.append(line if active else "")
            continue
        word, rest, more = match[1], match[2], 0
        while rest.endswith("\\"):
            rest, more = rest[:-1] + next(lines, ""), more + 1
        out += [line if word == "line" else "", *[""] * more]
        if word in ("if", "ifdef", "ifndef"):
            stack.append((_holds(word, rest, defined),) * 2)
        elif word in ("elif", "else") and stack:
            now = not stack[-1][1] and (word == "else" or _holds("if", rest, defined))
            stack[-1] = now, now or stack[-1][1]
        elif word == "endif" and stack:
            stack.pop()
        elif word == "define" and active and (name := re.match(r"\w+", rest)):
            defined[name[0]] = rest[name.end():].strip()
            hidden = hidden or "__global__" in rest
    return "\n".join(out), hidden


def _holds(word: str, rest: str, defined: Mapping[str, str]) -> bool:
    """Whether a condition holds; one that is not understood is taken to."""
    rest = rest.strip()
    if word != "if":
        return (rest.split(" ")[0] in defined) is (word == "ifdef")
    if match := _DEFINED.fullmatch(rest):
        return (match[2] in defined) is not bool(match[1])
    return defined.get(rest, rest) != "0"


class _Scan:
    """Walks through tokens: namespaces are entered, other braces passed over."""

    def __init__(self, code: str, hidden: bool) -> None:
        self.code, self.hidden = code, hidden
        found = list(_TOKEN.finditer(re.sub(r"(?m)^[ \t]*#.*", lambda line: " " * len(line[0]), code)))
        self.tokens, self.starts = [one[0] for one in found], [one.start() for one in found]

    def outline(self) -> Outline:
        tokens, kernels, host, seen = self.tokens, list[Declared](), "", 0
        spaces: list[str] = []  # the namespaces around, "" for one without a name and for extern "C" { }
        start = at = 0
        while at < len(tokens):
            token = tokens[at]
            if token in "([":
                at = self._behind(at)
                continue
            if token == "{" and (space := self._space(start, at)) is not None:
                spaces.append(space)
                start = at + 1
            elif token in "{;":
                if "__global__" in tokens[start:at]:
                    seen += 1
                    kernels += self._kernel(start, at, spaces)
                elif token == "{" and not spaces and self._name(start, at) == "main":
                    host = host or f"main, {self._where(start)}"
                at = self._behind(at) - 1 if token == "{" else at
                start = at + 1
            elif token == "}":
                if spaces:
                    spaces.pop()
                start = at + 1
            at += 1
        if not host and "<<<" in tokens:
            host = f"a launch, {self._where(tokens.index('<<<'))}"
        complete = not self.hidden and tokens.count("__global__") == seen
        return Outline(tuple(dict.fromkeys(kernels)), complete, host)  # some are declared, then defined

    def _behind(self, at: int) -> int:
        """The place behind the bracket that closes the one at ``at``."""
        opens, depth = self.tokens[at], 0
        for place in range(at, len(self.tokens)):
            depth += (self.tokens[place] == opens) - (self.tokens[place] == _CLOSES[opens])
            if depth == 0:
                return place + 1
        return len(self.tokens)

    def _space(self, start: int, end: int) -> str | None:
        """The namespace that a brace opens; None: it opens something else."""
        words = self.tokens[start:end]
        if words == ["extern", '"C"']:
            return ""
        if "namespace" not in words[:2]:
            return None
        return "".join(words[words.index("namespace") + 1:])

    def _name(self, start: int, end: int) -> str:
        """The name before the parameters of a function: the last parenthesis that is no attribute's."""
        found, at = "", start
        while at < end:
            if self.tokens[at] == "(":
                if at > start and self.tokens[at - 1] not in _ATTRIBUTES:
                    found = self.tokens[at - 1]
                at = self._behind(at)
            else:
                at += 1
        return found if found.isidentifier() else ""

    def _kernel(self, start: int, end: int, spaces: list[str]) -> list[Declared]:
        """The kernel that is declared; none by a template's specialization or instance."""
        parameters: tuple[str, ...] | None = None
        marked = self.tokens.index("__global__", start)
        if "template" in self.tokens[start:marked]:
            at = self.tokens.index("template", start) + 1
            parameters = self._parameters(at) if self.tokens[at] == "<" else ()
        name = self._name(marked, end)
        return [Declared("::".join((*filter(None, spaces), name)), parameters)] if name and parameters != () else []

    def _parameters(self, at: int) -> tuple[str, ...]:
        """Of the template whose ``<`` is at ``at``."""
        found, place, first = [], at + 1, at + 1
        depth = 0
        while place < len(self.tokens):
            token = self.tokens[place]
            if token in "([{":
                place = self._behind(place)
                continue
            if depth == 0 and token in ",>":
                if place > first:
                    text = self.code[self.starts[first]:self.starts[place]]
                    found.append(" ".join(text.split()))
                first = place + 1
                if token == ">":
                    break
            depth += (token == "<") - (token == ">")
            place += 1
        return tuple(found)

    def _where(self, place: int) -> str:
        """``line 10``, by the last #line before a token."""
        return f"line {located(self.code, self.starts[place])[1]}"
