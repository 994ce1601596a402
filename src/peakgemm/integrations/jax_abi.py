"""XLA's foreign function interface as Python reads it: the structs, functions and numbers of ``xla/ffi/api/c_api.h``.

`read_header` holds the header that the installed jaxlib ships against these tables, before a handler is registered. By
the interface's own rule a minor version adds fields behind those that a struct has, and changes nothing else.
"""

from __future__ import annotations

import ctypes
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from ..errors import MissingComponent

VERSION = 0, 1  # of jaxlib 0.6: the oldest that has all that these tables name

COMMAND_BUFFER_COMPATIBLE = 1
VALUES = {"XLA_FFI_Extension_Metadata": 1, "XLA_FFI_ExecutionStage_EXECUTE": 3, "XLA_FFI_ArgType_BUFFER": 1,
          "XLA_FFI_RetType_BUFFER": 1, "XLA_FFI_AttrType_STRING": 4, "XLA_FFI_Error_Code_INVALID_ARGUMENT": 3,
          "XLA_FFI_Error_Code_RESOURCE_EXHAUSTED": 8, "XLA_FFI_Error_Code_INTERNAL": 13}
EXECUTE = VALUES["XLA_FFI_ExecutionStage_EXECUTE"]

_WORD, _INT = ctypes.c_uint64, ctypes.c_int32  # pointers and sizes; enumerations and numbers
_STRUCTS: dict[str, Any] = {}


def _struct(name: str, /, **fields: Any) -> Any:
    """A struct of the interface, by the fields that it begins with."""
    _STRUCTS[name] = type(name, (ctypes.Structure,), {"_fields_": list(fields.items())})
    return _STRUCTS[name]


_SIZE: dict[str, Any] = {"struct_size": _WORD}
_HEAD = _SIZE | {"extension_start": _WORD}
ExtensionBase = _struct("XLA_FFI_Extension_Base", **_SIZE, type=_INT, next=_WORD)
ApiVersion = _struct("XLA_FFI_Api_Version", **_HEAD, major_version=_INT, minor_version=_INT)
Api = _struct("XLA_FFI_Api", **_HEAD, api_version=ApiVersion, internal_api=_WORD)  # then the functions' addresses
Buffer = _struct("XLA_FFI_Buffer", **_HEAD, dtype=_INT, data=_WORD, rank=_WORD, dims=_WORD)
ByteSpan = _struct("XLA_FFI_ByteSpan", ptr=_WORD, len=_WORD)
Args = _struct("XLA_FFI_Args", **_HEAD, size=_WORD, types=_WORD, args=_WORD)
Rets = _struct("XLA_FFI_Rets", **_HEAD, size=_WORD, types=_WORD, rets=_WORD)
Attrs = _struct("XLA_FFI_Attrs", **_HEAD, size=_WORD, types=_WORD, names=_WORD, attrs=_WORD)
CallFrame = _struct("XLA_FFI_CallFrame", **_HEAD, api=_WORD, ctx=_WORD, stage=_INT, args=Args, rets=Rets, attrs=Attrs)
ErrorCreate = _struct("XLA_FFI_Error_Create_Args", **_HEAD, message=_WORD, errc=_INT)
StreamGet = _struct("XLA_FFI_Stream_Get_Args", **_HEAD, ctx=_WORD, stream=_WORD)
Metadata = _struct("XLA_FFI_Metadata", **_SIZE, api_version=ApiVersion, traits=ctypes.c_uint32)
MetadataExtension = _struct("XLA_FFI_Metadata_Extension", extension_base=ExtensionBase, metadata=_WORD)
DeviceOrdinalGet = _struct("XLA_FFI_DeviceOrdinal_Get_Args", **_HEAD, ctx=_WORD, device_ordinal=_INT)
_RENAMED = "XLA_FFI_InternalExtension", "XLA_FFI_Extension_Base"  # since version 0.5 (jaxlib 0.12), and before


class Interface(NamedTuple):
    """What the installed header says.

    Attributes:
        version: major and minor.
        functions: by name, where `Api` holds the address of each, in bytes.
    """

    version: tuple[int, int]
    functions: dict[str, int]


def read_header(text: str, where: str) -> Interface:
    """What a ``c_api.h`` says, held against this module's tables.

    Raises:
        MissingComponent: another major version, an older minor one, or what begins otherwise; by name.
    """
    def refuse(what: str) -> NoReturn:
        raise MissingComponent(f"XLA's foreign function interface: {where} {what}; install a jaxlib that peakgemm "
                               "knows (0.6 to 0.12 were tried), or call peakgemm.matmul outside of jit")

    def number(which: str) -> int:
        defined = re.search(rf"#define XLA_FFI_API_{which} (\d+)", text)
        return int(defined[1]) if defined else refuse(f"defines no XLA_FFI_API_{which}")

    def fields_of(name: str) -> list[str]:
        """Names; of structs that lie within this one with their type."""
        body = re.search(rf"struct {name} \{{(.*?)\}}", text, re.S)
        lines = [line.split() for line in (body[1] if body else "").split(";") if line.strip()]
        return [" ".join(words) if words[0] in _STRUCTS else words[-1].lstrip("*") for words in lines]

    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S).replace(*_RENAMED)
    version = number("MAJOR"), number("MINOR")
    if version[0] != VERSION[0] or version < VERSION:
        refuse(f"is version {version[0]}.{version[1]}, peakgemm knows {VERSION[0]}.{VERSION[1]} and later minor "
               f"versions of {VERSION[0]}")
    functions = re.findall(r"_XLA_FFI_API_STRUCT_FIELD\((\w+)\);", text)
    for name in ("XLA_FFI_Error_Create", "XLA_FFI_Stream_Get", "XLA_FFI_DeviceOrdinal_Get"):
        if name not in functions:
            refuse(f"has struct XLA_FFI_Api without a function {name}")
    for name, struct in _STRUCTS.items():
        fields = fields_of(name)
        wanted = [f"{kind.__name__} {field}" if kind.__name__ in _STRUCTS else field for field, kind in struct._fields_]
        if fields[:len(wanted)] != wanted:
            refuse(f"has struct {name} with the fields {', '.join(fields) or 'none'}, where peakgemm reads "
                   f"{', '.join(wanted)}")
    for name, value in VALUES.items():
        if not re.search(rf"\b{name}\s*=\s*{value}\s*[,}}]", text):
            refuse(f"has another {name} than {value}")
    return Interface(version, {name: ctypes.sizeof(Api) + 8 * i for i, name in enumerate(functions)})


@cache
def interface() -> Interface:
    """The installed jaxlib's.

    Raises:
        MissingComponent: no jax, no such header, or one that peakgemm does not know; see `read_header`.
    """
    import jax.ffi

    path = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise MissingComponent(f"XLA's foreign function interface: {path} cannot be read ({error}); reinstall jaxlib"
                               ) from None
    return read_header(text, str(path))


def word(address: int) -> int:
    """One pointer, or size, in memory."""
    return _WORD.from_address(address).value


def words(array: int, count: int) -> list[int]:
    """The ``count`` pointers, or sizes, of an array."""
    return (_WORD * count).from_address(array)[:]  # by a slice: an iterator takes 1 us to end


def buffers(array: int, count: int) -> list[Any]:
    """The `Buffer`s that an array of pointers names."""
    return [Buffer.from_address(pointer) for pointer in words(array, count)]


_CALLER = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)  # keeps the GIL: these calls take no time


def call(api: int, function: str, arguments: Any) -> int:
    """Call a function of the `Api` at an address; returns the error object that it returns (0: none)."""
    arguments.struct_size = ctypes.sizeof(arguments)
    return _function(word(api + interface().functions[function]))(ctypes.addressof(arguments)) or 0


@cache
def _function(address: int) -> Any:
    return _CALLER(address)
