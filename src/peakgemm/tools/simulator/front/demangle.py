"""Names of C++ kernels as people write them: ``ns::foo<float, 8>(float*, int)`` of ``_ZN2ns3fooIfLi8EEEvPfi``.

The part of the Itanium C++ ABI's mangling that kernels use: namespaces, template arguments that are types, numbers and
packs, and parameters. For a name with more in it the bare name is what is found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

from ....errors import InvalidValue

BUILTIN = {"v": "void", "w": "wchar_t", "b": "bool", "c": "char", "a": "signed char", "h": "unsigned char",
           "s": "short", "t": "unsigned short", "i": "int", "j": "unsigned int", "l": "long", "m": "unsigned long",
           "x": "long long", "y": "unsigned long long", "n": "__int128", "o": "unsigned __int128", "f": "float",
           "d": "double", "e": "long double", "z": "...", "Dn": "decltype(nullptr)", "Dh": "half", "Ds": "char16_t",
           "Di": "char32_t", "Du": "char8_t", "DF16_": "_Float16", "DF16b": "__bf16"}  # fmt: skip
HOLE = "\0"  # in a type of a function or an array: where a pointer to it has its star


class Unknown(Exception):
    """A part of a name that is not known here."""


class Name:
    """A kernel's name: ``path`` with namespaces, ``arguments`` of its template (None: it is none), ``parameters``."""

    def __init__(self, path: str, arguments: list[str] | None, parameters: list[str] | None) -> None:
        self.path, self.arguments, self.parameters = path, arguments, parameters

    def __str__(self) -> str:
        shown = self.path + (f"<{', '.join(self.arguments)}>" if self.arguments is not None else "")
        return shown + (f"({', '.join(self.parameters)})" if self.parameters is not None else "")


@lru_cache(maxsize=1024)
def demangled(symbol: str) -> Name:
    """What a symbol of PTX is the name of; one that is not mangled stands for itself."""
    if not symbol.startswith("_Z"):
        return Name(symbol, None, None)
    try:
        return _Reader(symbol[2:]).encoding()
    except (Unknown, IndexError, ValueError, RecursionError):
        return Name(_bare(symbol), None, None)


def shown(symbol: str) -> str:
    """A symbol for messages."""
    return str(demangled(symbol))


def chosen(entry: str, symbols: Sequence[str], whose: str) -> str:
    """The symbol that ``entry`` means: itself, or a name with or without namespaces, template arguments, parameters.

    Raises:
        InvalidValue: there is none, or there are several; the message, which begins with ``whose``, lists them.
    """
    if entry in symbols:
        return entry
    wanted = _plain(entry)
    names = {symbol: demangled(symbol) for symbol in symbols}
    forms: tuple[Callable[[Name], str], ...] = (
        str, lambda name: str(Name(name.path, name.arguments, None)), lambda name: name.path)
    for form in forms:
        found = [symbol for symbol, name in names.items() if wanted in _endings(_plain(form(name)))]
        if len(found) == 1:
            return found[0]
        if found:
            raise InvalidValue(f"{whose} {len(found)} kernels {entry!r}: {', '.join(map(shown, found))}; name one with "
                               "its template arguments or parameters")
    raise InvalidValue(f"{whose} no kernel {entry!r}; it has {', '.join(map(shown, symbols)) or 'none'}")


def template_arguments(name: str) -> str:
    """``<float, 8>`` of ``ns::foo<float, 8>(float*)``; empty where there are none."""
    start, depth, within = name.find("<"), 0, 0  # of <, and of other brackets, in which > compares
    for place, sign in enumerate(name[start:] if "(" not in name[:start] else "", start):
        within += (sign in "([{") - (sign in ")]}")
        depth += (sign == "<") - (sign == ">") if not within else 0
        if sign == ">" and depth == 0 and not within:
            return name[start:place + 1]
    return ""


def bare(name: str) -> str:
    """``ns::foo`` of ``ns::foo<float, 8>(float*)``."""
    return re.split(r"[<(]", name.replace("(anonymous namespace)::", ""))[0].strip()


def ends_with(path: str, name: str) -> bool:
    """Whether ``path`` is ``name``, or the same within further namespaces."""
    return name in _endings(path)


def _plain(text: str) -> str:
    """Without what may be written differently: blanks, ``float const``, suffixes of numbers."""
    text = re.sub(r"\b([\w:]+) +const\b(?! *[\w:])", r"const \1", text)
    text = re.sub(r"\b(\d+)[uUlL]+\b", r"\1", text)
    return re.sub(r"\bunsigned\b(?! *(?:int|long|short|char|__int128))", "unsignedint", re.sub(r"\s+", " ", text)
                  ).replace(" ", "").replace("(void)", "()")


def _endings(text: str) -> set[str]:
    """A name, and the same without some of the namespaces that it begins with."""
    found, depth, place = {text}, 0, 0
    while place < len(text):
        depth += (text[place] in "<([") - (text[place] in ">)]")
        if depth == 0 and text.startswith("::", place):
            found.add(text[place + 2:])
        if depth == 1 and text[place] == "(" and not text.startswith("(anonymous", place):
            break
        place += 1
    return found


def _bare(symbol: str) -> str:
    """The names at the beginning of a symbol, with nothing of what follows them."""
    at, parts = 3 if symbol.startswith("_ZN") else 2, []
    while match := re.match(r"L?([1-9]\d{0,3})", symbol[at:]):
        start = at + match.end()
        at = start + int(match[1])
        parts.append(symbol[start:at])
        if not symbol.startswith("_ZN"):
            break
    return "::".join(parts) or symbol


class _Reader:
    """Reads a mangled name; see "Itanium C++ ABI", 5.1."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.known: list[str | list[str]] = []  # substitutions
        self.arguments: list[str | list[str]] | None = None  # of the innermost template so far

    def accept(self, text: str) -> bool:
        if self.text.startswith(text, self.at):
            self.at += len(text)
            return True
        return False

    def encoding(self) -> Name:
        path, arguments = self.name()
        if self.at >= len(self.text) or self.text[self.at] == ".":
            return Name(path, arguments, None)
        if arguments is not None:
            self.type()  # what it returns
        parameters = self.types(lambda: self.at >= len(self.text) or self.text[self.at] == ".")
        return Name(path, arguments, [] if parameters == ["void"] else parameters)

    def name(self) -> tuple[str, list[str] | None]:
        """The path, and the arguments of the template that it ends with."""
        if self.accept("N"):
            return self.nested()
        if self.accept("St"):
            path = "std::" + self.source()
        elif self.accept("S"):
            path = _text(self.substitution())
        else:
            path = self.source()
            if self.text.startswith("I", self.at):
                self.known.append(path)
        return path, (_flat(self.template()) if self.text.startswith("I", self.at) else None)

    def nested(self) -> tuple[str, list[str] | None]:
        while self.accept("K") or self.accept("V"):
            pass
        path, arguments = "", None
        while not self.accept("E"):
            if arguments is not None:
                path, arguments = f"{path}<{', '.join(arguments)}>", None
            if self.text.startswith("I", self.at):
                arguments = _flat(self.template())
                whole = f"{path}<{', '.join(arguments)}>"
                if not self.text.startswith("E", self.at):
                    self.known.append(whole)
                continue
            if self.accept("St"):
                path = "std"
                continue
            if self.accept("S"):
                path = _text(self.substitution())
                continue
            if self.text.startswith("T", self.at):
                path = _text(self.parameter())
            else:
                source = self.source()
                path = f"{path}::{source}" if path else source
            if not self.text.startswith("E", self.at):
                self.known.append(path)
        return path, arguments

    def source(self) -> str:
        self.accept("L")
        match = re.compile(r"[1-9]\d{0,4}").match(self.text, self.at)
        if match is None:
            raise Unknown
        end = match.end() + int(match[0])
        if end > len(self.text):
            raise Unknown
        name, self.at = self.text[match.end():end], end
        while self.accept("B"):  # a tag, of which the name is the better without
            self.source()
        return "(anonymous namespace)" if name.startswith("_GLOBAL__N") else name

    def number(self) -> int:
        """``_``, ``0_``, ``1_``, ... ``A_`` in base 36: 0, 1, 2, ..."""
        end = self.text.index("_", self.at)
        digits, self.at = self.text[self.at:end], end + 1
        return int(digits, 36) + 1 if digits else 0

    def substitution(self) -> str | list[str]:
        return self.known[self.number()]

    def parameter(self) -> str | list[str]:
        self.at += 1
        if self.arguments is None:
            raise Unknown
        return self.arguments[self.number()]

    def template(self) -> list[str | list[str]]:
        self.at += 1
        found: list[str | list[str]] = []
        while not self.accept("E"):
            if self.accept("J"):
                found.append(self.types(lambda: self.accept("E")))
            else:
                found.append(self.argument())
        self.arguments = found
        return found

    def argument(self) -> str:
        if not self.accept("L"):
            return _text(self.type())
        if self.accept("_Z"):
            raise Unknown
        kind = _text(self.type())
        end = self.text.index("E", self.at)
        value, self.at = self.text[self.at:end].replace("n", "-"), end + 1
        if kind == "bool":
            return "true" if value == "1" else "false"
        if kind == "char" and value.isdigit():
            return repr(chr(int(value)))
        return value if kind in BUILTIN.values() else f"({kind}){value}"

    def types(self, ended: Callable[[], bool]) -> list[str]:
        found: list[str] = []
        while not ended():
            one = self.argument() if self.text.startswith("L", self.at) else self.type()
            found += one if isinstance(one, list) else [one]
        return [one.replace(HOLE, "") for one in found]

    def type(self) -> str | list[str]:
        for length in (1, 2, 5):
            if found := BUILTIN.get(self.text[self.at:self.at + length]):
                self.at += length
                return found
        return self.compound()

    def compound(self) -> str | list[str]:
        result: str | list[str]
        if self.accept("S") and not self.text.startswith("t", self.at):
            result = self.substitution()
            return self.applied(result) if self.text.startswith("I", self.at) else result
        if self.text[self.at - 1] == "S" and self.accept("t"):
            self.at -= 2
        if self.text.startswith("T", self.at):
            result = self.parameter()
            self.known.append(result)
            return self.applied(result) if self.text.startswith("I", self.at) else result
        if self.accept("Dp"):
            result = self.type()
        elif match := re.compile(r"[rVK]+").match(self.text, self.at):
            self.at = match.end()
            result = _each(self.type(), lambda one: _qualified(one, "K" in match[0], "V" in match[0]))
        elif self.text[self.at] in "PRO":
            mark = {"P": "*", "R": "&", "O": "&&"}[self.text[self.at]]
            self.at += 1
            result = _each(self.type(), lambda one: one.replace(HOLE, f"({mark}{HOLE})") if HOLE in one else one + mark)
        elif self.accept("A"):
            end = self.text.index("_", self.at)
            size, self.at = self.text[self.at:end], end + 1
            result = _each(self.type(), lambda one: f"{one} {HOLE}[{size}]")
        elif self.accept("F"):
            self.accept("Y")
            back = _text(self.type())
            result = f"{back} {HOLE}({', '.join(self.types(lambda: self.accept('E')))})".replace("(void)", "()")
        else:
            path, arguments = self.name()
            result = path + (f"<{', '.join(arguments)}>" if arguments is not None else "")
        self.known.append(result)
        return result

    def applied(self, template: str | list[str]) -> str:
        outer = self.arguments
        result = f"{_text(template)}<{', '.join(_flat(self.template()))}>"
        self.arguments = outer
        self.known.append(result)
        return result


def _text(item: str | list[str]) -> str:
    return ", ".join(item) if isinstance(item, list) else item


def _flat(items: list[str | list[str]]) -> list[str]:
    return [one for item in items for one in (item if isinstance(item, list) else [item])]


def _each(item: str | list[str], what: Callable[[str], str]) -> str | list[str]:
    return [what(one) for one in item] if isinstance(item, list) else what(item)


def _qualified(text: str, const: bool, volatile: bool) -> str:
    words = ["const"] * const + ["volatile"] * volatile
    return f"{text} {' '.join(words)}" if text.endswith(("*", "&")) else f"{' '.join(words)} {text}"
