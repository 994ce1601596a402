"""XLA's foreign function interface as Python reads it: which word of which struct means what.

Source: ``xla/ffi/api/c_api.h``, which jaxlib ships. Every field read here is eight bytes wide or begins on eight bytes,
so that a struct is an array of words. `check` holds the installed header against this table before a handler is
registered: by the interface's own rule a minor version adds fields behind those there are, and nothing else.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import MissingComponent

VERSION = 0, 1  # the interface that this table was written for, and its oldest minor version that has all of it

# XLA_FFI_CallFrame, with its three structs inside; the last is `attrs`.
CONTEXT, STAGE, ARGS, RETS, ATTRS = 3, 4, 9, 14, 20  # ARGS, RETS, ATTRS: the arrays of pointers
API, EXTENSION, ARG_COUNT, RET_COUNT = 2, 1, 7, 12
FRAME_WORDS = 21
DATA, RANK, DIMS = 3, 4, 5  # XLA_FFI_Buffer
BUFFER_WORDS = 6
METADATA_EXTENSION = 1  # XLA_FFI_Extension_Metadata
COMMAND_BUFFER_COMPATIBLE = 1
EXECUTE = 3
INVALID_ARGUMENT, RESOURCE_EXHAUSTED, INTERNAL = 3, 8, 13

# XLA_FFI_Api: words before the functions are its size, extensions, version (three words) and internals.
_API_FIRST = 6
_FUNCTIONS = {"XLA_FFI_Error_Create": 0, "XLA_FFI_Stream_Get": 4}  # those that are called, and their places
ERROR_CREATE, STREAM_GET = (_API_FIRST + place for place in _FUNCTIONS.values())
ORDINAL = "XLA_FFI_DeviceOrdinal_Get"  # younger than the others: `function_word` says where it is, if it is

# What version 0.5 (jaxlib 0.12) calls otherwise; its fields are the same.
_RENAMED = {"XLA_FFI_Extension_Base": "XLA_FFI_InternalExtension"}
_STRUCTS: dict[str, tuple[str, ...]] = {
    "XLA_FFI_Extension_Base": ("struct_size", "type", "next"),
    "XLA_FFI_Api_Version": ("struct_size", "extension_start", "major_version", "minor_version"),
    "XLA_FFI_Buffer": ("struct_size", "extension_start", "dtype", "data", "rank", "dims"),
    "XLA_FFI_ByteSpan": ("ptr", "len"),
    "XLA_FFI_Args": ("struct_size", "extension_start", "size", "types", "args"),
    "XLA_FFI_Rets": ("struct_size", "extension_start", "size", "types", "rets"),
    "XLA_FFI_Attrs": ("struct_size", "extension_start", "size", "types", "names", "attrs"),
    "XLA_FFI_CallFrame": ("struct_size", "extension_start", "api", "ctx", "stage", "args", "rets", "attrs"),
    "XLA_FFI_Error_Create_Args": ("struct_size", "extension_start", "message", "errc"),
    "XLA_FFI_Stream_Get_Args": ("struct_size", "extension_start", "ctx", "stream"),
    "XLA_FFI_Metadata": ("struct_size", "api_version", "traits"),
    "XLA_FFI_Metadata_Extension": ("extension_base", "metadata"),
}
_VALUES = {"XLA_FFI_Extension_Metadata": METADATA_EXTENSION, "XLA_FFI_ArgType_BUFFER": 1, "XLA_FFI_RetType_BUFFER": 1,
           "XLA_FFI_AttrType_STRING": 4, "XLA_FFI_ExecutionStage_EXECUTE": EXECUTE,
           "XLA_FFI_Error_Code_INVALID_ARGUMENT": INVALID_ARGUMENT, "XLA_FFI_Error_Code_INTERNAL": INTERNAL,
           "XLA_FFI_Error_Code_RESOURCE_EXHAUSTED": RESOURCE_EXHAUSTED}
_INLINE = {"XLA_FFI_CallFrame": ("XLA_FFI_Args args", "XLA_FFI_Rets rets", "XLA_FFI_Attrs attrs"),
           "XLA_FFI_Metadata": ("XLA_FFI_Api_Version api_version",)}


class Header:
    """What the installed ``c_api.h`` says.

    Attributes:
        version: major and minor, as the header defines them.
        functions: names of ``XLA_FFI_Api``'s, in their order.
    """

    def __init__(self, text: str, where: str) -> None:
        self._text, self._where = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S), where
        self.version = self._number("MAJOR"), self._number("MINOR")
        self.functions = tuple(re.findall(r"_XLA_FFI_API_STRUCT_FIELD\((\w+)\);", self._text))

    def check(self) -> None:
        """Hold it against this module's table.

        Raises:
            MissingComponent: another major version, an older minor one, or a struct that begins otherwise; by name.
        """
        if self.version[0] != VERSION[0] or self.version < VERSION:
            self._refuse(f"is version {self.version[0]}.{self.version[1]}, peakgemm knows {VERSION[0]}.{VERSION[1]} "
                         f"and later minor versions of {VERSION[0]}")
        for name, wanted in _STRUCTS.items():
            fields = self._fields(name) or self._fields(_RENAMED.get(name, name))
            if tuple(field.split()[-1].lstrip("*") for field in fields[:len(wanted)]) != wanted:
                self._refuse(f"has struct {name} with the fields {', '.join(fields) or 'none'}, where peakgemm reads "
                             f"{', '.join(wanted)}")
            for inline in _INLINE.get(name, ()):
                if inline not in fields:
                    self._refuse(f"has struct {name} without a field '{inline}'")
        for name, value in _VALUES.items():
            if not re.search(rf"\b{name}\s*=\s*{value}\s*[,}}]", self._text):
                self._refuse(f"has another {name} than {value}")
        if any(self.functions[place:place + 1] != (name,) for name, place in _FUNCTIONS.items()):
            self._refuse(f"has struct XLA_FFI_Api begin with {', '.join(self.functions[:5]) or 'no function'}, where "
                         f"peakgemm calls {' and '.join(f'{name} at place {at}' for name, at in _FUNCTIONS.items())}")

    def function_word(self, name: str) -> int | None:
        """The word of ``XLA_FFI_Api`` that holds a function; None: it has none of that name."""
        return _API_FIRST + self.functions.index(name) if name in self.functions else None

    def _number(self, which: str) -> int:
        found = re.search(rf"#define XLA_FFI_API_{which} (\d+)", self._text)
        if found is None:
            self._refuse(f"defines no XLA_FFI_API_{which}")
        assert found is not None
        return int(found[1])

    def _fields(self, name: str) -> list[str]:
        body = re.search(rf"struct {name} \{{(.*?)\}}", self._text, re.S)
        return [" ".join(line.split()) for line in (body[1] if body else "").split(";") if line.strip()]

    def _refuse(self, what: str) -> None:
        raise MissingComponent(f"XLA's foreign function interface: {self._where} {what}; install a jaxlib that "
                               "peakgemm knows (0.6 to 0.12 were tried), or call peakgemm.matmul outside of jit")


@cache
def header() -> Header:
    """The installed jaxlib's, checked.

    Raises:
        MissingComponent: no jax, no such header, or one that peakgemm does not know; see `Header.check`.
    """
    import jax.ffi

    path = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise MissingComponent(f"XLA's foreign function interface: {path} cannot be read ({error}); reinstall jaxlib"
                               ) from None
    found = Header(text, str(path))
    found.check()
    return found


_Word = ctypes.c_uint64
_Words = {n: ctypes.c_uint64 * n for n in range(33)}


def words(address: int, count: int) -> Any:
    """``count`` words of memory, as a sequence that reads and writes there."""
    return _Words[count].from_address(address)


def word(address: int) -> int:
    """One word of memory."""
    return _Word.from_address(address).value


def struct(values: Sequence[int]) -> Any:
    """A struct of words of its own; ``ctypes.addressof`` says where."""
    return _Words[len(values)](*values)


_CALLER = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)  # keeps the GIL: these calls take no time


def call(api: int, word: int, arguments: Any) -> int:
    """A function of ``XLA_FFI_Api``; returns the error object that it returns (0: none)."""
    return _function(_Word.from_address(api + 8 * word).value)(ctypes.addressof(arguments)) or 0


@cache
def _function(address: int) -> Any:
    return _CALLER(address)
