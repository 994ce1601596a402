"""A ``.cu`` file with host code, read by libclang: the device code that a kernel needs.

libclang reads on behind what it does not know, so that host code needs no headers: what a launch is made of is declared
in ``headers/peakgemm_host.h``.
"""

from __future__ import annotations

import atexit
import ctypes
import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any

from ....errors import MissingComponent
from ....runtime.source import located
from . import includes

HEADER = "peakgemm_host.h"
REMEDY = "pip install 'peakgemm[cuda-files]' (libclang), with which kernels and launches are cut out of it"
_FILE = "joined.cu"
_KEEP_GOING = 0x200  # past headers that are not there
_ERROR = 3  # a diagnostic's severity
_SPACES = ("NAMESPACE", "LINKAGE_SPEC", "UNEXPOSED_DECL")
_FUNCTIONS = ("FUNCTION_DECL", "FUNCTION_TEMPLATE", "CXX_METHOD", "CONSTRUCTOR", "DESTRUCTOR", "CONVERSION_FUNCTION")
_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\r?\n)*[^\n]*", re.M)
_USING = re.compile(r"^(?:using\s+namespace\s+[\w:]+|using\s+[\w:]+|namespace\s+\w+\s*=\s*[\w:]+)\s*;|"
                    r"^namespace std \{ using namespace cuda::std; \}", re.M)
_DEFINE = re.compile(r"[ \t]*#[ \t]*define[ \t]+(\w+)(.*)", re.S)
_NAME = re.compile(r"[A-Za-z_]\w*")
# What libclang numbers operators with (CXBinaryOperatorKind, CXUnaryOperatorKind).
_BINARY = ("", "", "", "*", "/", "%", "+", "-", "<<", ">>", "<=>", "<", ">", "<=", ">=", "==", "!=", "&", "^", "|",
           "&&", "||", "=")
_UNARY = {8: "negated", 9: "~", 10: "!"}


@cache
def library() -> Any:
    """libclang, with the types of those functions that its Python does not know.

    Raises:
        MissingComponent: it is not installed, or does not load.
    """
    try:
        from clang import cindex

        lib, cursor = cindex.conf.lib, cindex.Cursor
    except Exception as error:
        said = (str(error) or repr(error)).splitlines()[0]
        raise MissingComponent(f"libclang cannot be loaded ({said}); run: {REMEDY}") from None
    for name, argument, result in (
            ("clang_getCursorBinaryOperatorKind", cursor, ctypes.c_int),
            ("clang_getCursorUnaryOperatorKind", cursor, ctypes.c_int),
            ("clang_Cursor_Evaluate", cursor, ctypes.c_void_p),
            ("clang_EvalResult_getKind", ctypes.c_void_p, ctypes.c_int),
            ("clang_EvalResult_getAsLongLong", ctypes.c_void_p, ctypes.c_longlong),
            ("clang_EvalResult_getAsDouble", ctypes.c_void_p, ctypes.c_double),
            ("clang_EvalResult_dispose", ctypes.c_void_p, None)):
        function = getattr(lib, name)
        function.argtypes, function.restype = [argument], result
    return lib


def available() -> bool:
    """Whether libclang is installed."""
    try:
        return bool(library())
    except MissingComponent:
        return False


def operator_of(cursor: Any) -> str:
    """The operator of an expression that has one."""
    if cursor.kind.name == "UNARY_OPERATOR":
        return _UNARY.get(library().clang_getCursorUnaryOperatorKind(cursor), "")
    number = library().clang_getCursorBinaryOperatorKind(cursor)
    return _BINARY[number] if number < len(_BINARY) else ""


def evaluated(cursor: Any) -> Any:
    """The value of a constant expression; None: it is none."""
    lib = library()
    result = lib.clang_Cursor_Evaluate(cursor)
    kind = lib.clang_EvalResult_getKind(result) if result else 0
    value = (lib.clang_EvalResult_getAsLongLong(result) if kind == 1 else
             lib.clang_EvalResult_getAsDouble(result) if kind == 2 else None)
    if result:
        lib.clang_EvalResult_dispose(result)
    return value


def template_of(function: Any) -> Any:
    """The template that a function is an instance of, else the function."""
    template = library().clang_getSpecializedCursorTemplate(function)
    return function if template is None or template.kind.is_invalid() else template


@lru_cache(maxsize=8)
def read(joined: str, macros: tuple[tuple[str, int], ...] = ()) -> HostCode:
    """The host code of joined source (`source.assemble`) with ``macros`` defined.

    Raises:
        MissingComponent: libclang is not installed.
    """
    return HostCode(joined, macros)


atexit.register(read.cache_clear)  # before libclang's Python is gone, which frees it


class HostCode:
    """A translation unit. ``kernels``: the kernels that it declares, by path; of several of a name the definition."""

    def __init__(self, joined: str, macros: tuple[tuple[str, int], ...]) -> None:
        library()
        from clang import cindex

        self.text = joined
        plain = joined.encode("ascii", "replace").decode()  # a byte a character: libclang counts bytes
        self.unit = cindex.Index.create().parse(_FILE, unsaved_files=[(_FILE, plain)], options=_KEEP_GOING, args=[
            "-x", "cuda", "--cuda-host-only", "-nocudainc", "-nocudalib", "-nostdinc", "-std=c++17", "-target",
            "x86_64-unknown-linux-gnu", "-Wno-everything", "-ferror-limit=0", "-D__CUDA_ARCH__=900", "-D__NVCC__",
            *(f"-D{name}={value}" for name, value in macros), "-include", str(includes.HOST / HEADER),
            f"-I{includes.HOST}"])
        self.kernels: dict[str, Any] = {}
        for one, _ in self._declared(self.unit.cursor):
            if "CUDAGLOBAL_ATTR" in _attributes(one) and (one.is_definition() or path(one) not in self.kernels):
                self.kernels[path(one)] = one

    def holds(self, cursor: Any) -> bool:
        """Whether a declaration is of this source, and not of a header that stands for others."""
        return cursor.location.file is not None and cursor.location.file.name == _FILE

    def where(self, cursor: Any) -> str:
        """``sgemm.cu:12``."""
        return self._line(cursor.extent.start.offset)

    def said(self, cursor: Any) -> str:
        """The beginning of its text."""
        text = self.text[cursor.extent.start.offset:cursor.extent.end.offset]
        return " ".join(text.split())[:40] or "an expression"

    def _line(self, at: int) -> str:
        return "{}:{}".format(*located(self.text, at))

    @property
    def complaint(self) -> str:
        """Why something may not be seen: headers that are not there, or the parser's first error."""
        errors = [one for one in self.unit.diagnostics if one.severity >= _ERROR and one.location.file and
                  one.location.file.name == _FILE and one.category_name == "Parse Issue"]
        return includes.missing(self.text) or (
            f"{self._line(errors[0].location.offset)}: {errors[0].spelling}" if errors and not self.kernels else "")

    def _declared(self, parent: Any, opened: str = "") -> Iterator[tuple[Any, str]]:
        """The declarations of the source, each with the text that opens what it is in: namespaces, ``extern "C"``."""
        for one in filter(self.holds, parent.get_children()):
            if one.kind.name not in _SPACES:
                yield one, opened
            elif (inner := next(one.get_children(), None)) is not None:
                start, first = one.extent.start.offset, inner.extent.start.offset
                brace = self.text.find("{", start, first) + 1
                yield from self._declared(one, opened + self.text[start:brace or first])

    def device_text(self, kernel: str) -> str:
        """The source with nothing but what the kernel of that path names, in its lines: device functions, constants,
        types, directives."""
        macros: dict[str, set[str]] = {}
        for line in _DIRECTIVE.finditer(self.text):
            if match := _DEFINE.match(line[0]):
                macros.setdefault(match[1], set()).update(_NAME.findall(match[2]))
        left = [(*one, _names(one[0])) for one in self._declared(self.unit.cursor) if _for_device(one[0])]
        kept = [(*one.span(), "") for of in (_DIRECTIVE, _USING) for one in of.finditer(self.text)]
        reached, new = set[str](), {self.kernels[kernel].spelling}
        while new:
            reached |= new
            new = set[str]().union(*(macros.get(name, ()) for name in new))
            spans = [(*self._range(one), opened) for one, opened, names in left if names & reached]
            left = [one for one in left if not one[2] & reached]
            new = new.union(*(_NAME.findall(self.text[start:end]) for start, end, _ in spans)) - reached
            kept += spans
        blank, pieces, at = re.sub(r"[^\r\n]", " ", self.text), [], 0
        for start, end, opened in sorted(kept):
            pieces += [blank[at:start], opened, self.text[max(start, at):end], "}" * opened.count("{")]
            at = max(at, end)
        return "".join((*pieces, blank[at:]))

    def _range(self, one: Any) -> tuple[int, int]:
        """Where a declaration is, with its semicolon."""
        start, end = one.extent.start.offset, one.extent.end.offset
        if one.kind.name in _FUNCTIONS and self.text[end - 1:end] == "}":
            return start, end
        return start, self.text.find(";", end) + 1 or end


def path(cursor: Any) -> str:
    """A declaration's name with its namespaces, those without a name left out."""
    names = [cursor.spelling]
    while (cursor := cursor.semantic_parent).kind.name in ("NAMESPACE", "STRUCT_DECL", "CLASS_DECL"):
        names.append(cursor.spelling)
    return "::".join(name for name in reversed(names) if name and "(" not in name)


def _attributes(cursor: Any) -> set[str]:
    return {one.kind.name for one in cursor.get_children() if one.kind.name.endswith("_ATTR")}


def _for_device(one: Any) -> bool:
    """Whether device code may use a declaration: no function of the host, unless a constant expression calls it."""
    return (one.kind.name not in _FUNCTIONS or bool(_attributes(one) & {"CUDADEVICE_ATTR", "CUDAGLOBAL_ATTR"})
            or any(token.spelling == "constexpr" for token, _ in zip(one.get_tokens(), range(12), strict=False)))


def _names(one: Any) -> set[str]:
    """The names by which a declaration is used; of an operator, which has none, those of what it takes."""
    if one.spelling.startswith("operator"):
        return set(_NAME.findall(" ".join(child.type.spelling for child in one.get_children())))
    return {one.spelling, *(child.spelling for child in one.get_children() if one.kind.name == "ENUM_DECL")}
