"""What nvdisasm says of bare instruction words: their text, and the registers that each reads and writes.

It is the authority for the encoding table (`lab.sass_table`) and for the tests of it; nothing that edits or checks
a cubin needs it.
"""

from __future__ import annotations

import re
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from peakgemm.errors import InvalidValue
from peakgemm.sass.elf import CUDA_MACHINE, WORD_BYTES
from peakgemm.sass.listing import find_nvdisasm

_EXIT, _LOOP = 0x000FEA0003800000 << 64 | 0x794D, 0x000FC0000383FFFF << 64 | 0xFFFFFFFC00FC7947
_BAD = re.compile(r"at address (0x[0-9a-f]+)")
_ROW = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
_CODE = re.compile(r"\s*\.section\s+\.text\.([^,\s]+)")
_SPECIFIC = frozenset(("sm_90", "sm_100", "sm_103", "sm_120"))  # whose instruction set has a larger variant, "a"


@dataclass(frozen=True, slots=True)
class Access:
    """The registers that an instruction reads and writes: names such as ``R4``, ``UR8``, ``P0``, ``UP1``."""

    reads: frozenset[str]
    writes: frozenset[str]


def texts(words: Sequence[int], arch: str) -> list[str | None]:
    """Each word as nvdisasm prints it, branch targets as if the first stood at address 0; None: no such instruction."""
    alive = list(range(len(words)))
    found: list[str | None] = [None] * len(words)
    name = arch.upper().replace("_", "") + ("a" if arch in _SPECIFIC else "")
    with tempfile.TemporaryDirectory(prefix="peakgemm-") as folder:
        path = Path(folder, "code.raw")
        while alive:
            path.write_bytes(b"".join(words[place].to_bytes(WORD_BYTES, "little") for place in alive))
            run = _run("-b", name, str(path))
            if run.returncode == 0:
                rows = {int(match[1], 16): match[2] for match in map(_ROW.match, run.stdout.splitlines()) if match}
                for at, place in enumerate(alive):
                    text = rows.get(at * WORD_BYTES, "???")  # some that it does not know it leaves out, or marks so
                    found[place] = None if "???" in text or "INVALID" in text else re.sub(r"\s+", " ", text)
                return found
            bad = {int(address, 16) // WORD_BYTES for address in _BAD.findall(run.stderr)}
            if not bad:
                raise InvalidValue(f"nvdisasm refuses bare code for {arch}: {run.stderr.strip()[:200]}")
            alive = [place for at, place in enumerate(alive) if at not in bad]
    return found


def accesses(code: Sequence[int] | bytes, arch: str) -> dict[tuple[str, int], Access]:
    """What each instruction of ``code`` reads and writes, by function and address.

    ``code`` is a whole cubin, or the words of a straight line without branches, which stand for a function ``k``.
    """
    data = _elf([*code, _EXIT, _LOOP], arch) if not isinstance(code, bytes) else code
    with tempfile.TemporaryDirectory(prefix="peakgemm-") as folder:
        path = Path(folder, "code.cubin")
        path.write_bytes(data)
        run = _run("-c", "-lrm", "narrow", str(path))
    if run.returncode:
        raise InvalidValue(f"nvdisasm refuses the code for {arch}: {run.stderr.strip()[:300]}")
    return _table(run.stdout)


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([find_nvdisasm(), *arguments], capture_output=True, text=True, errors="replace", check=False)


def _table(listing: str) -> dict[tuple[str, int], Access]:
    """The life ranges of `nvdisasm -lrm narrow`: a column a register, ``^`` written, ``v`` read, ``x`` both."""
    columns: dict[int, str] = {}
    header: list[str] = []
    function = ""
    found: dict[tuple[str, int], Access] = {}
    for line in listing.splitlines():
        if section := _CODE.match(line):
            function, columns, header = section[1], {}, []
        text, bar, table = line.partition("// ")
        if not bar:
            continue
        match = _ROW.match(text)
        if match is None:
            if table.startswith("+-"):
                header = [] if columns else header
                if header and any("#" in row for row in header):
                    columns = _columns(header)
            elif not columns or "GPR" in table:
                columns = {}
                header.append(table)
            continue
        reads, writes = set(), set()
        for at, mark in enumerate(table):
            if mark in "^vx" and at in columns:
                if mark != "^":
                    reads.add(columns[at])
                if mark != "v":
                    writes.add(columns[at])
        found[function, int(match[1], 16)] = Access(frozenset(reads), frozenset(writes))
    return found


def _columns(header: list[str]) -> dict[int, str]:
    """Place in a line of the table to register, from the rows of digits that head it."""
    names = next(row for row in header if "GPR" in row)
    digits = [row for row in header if row is not names]
    kinds = {"GPR": "R", "PRED": "P", "UGPR": "UR", "UPRED": "UP"}
    edges = [at for at, mark in enumerate(names) if mark == "|"]
    found = {}
    for start, end in pairwise(edges):
        kind = kinds.get(names[start + 1:end].strip())
        for at in range(start + 1, end) if kind else ():
            number = "".join(row[at] for row in digits if at < len(row) and row[at].isdigit())
            if number:
                found[at] = f"{kind}{int(number)}"
    return found


def _elf(words: Sequence[int], arch: str) -> bytes:
    """The smallest cubin with ``words`` as its only kernel."""
    code = b"".join(word.to_bytes(WORD_BYTES, "little") for word in words)
    names = b"\0.shstrtab\0.strtab\0.symtab\0.text.k\0"
    strings = b"\0k\0"
    symbols = bytes(24) + struct.pack("<IBBHQQ", 1, 0x12, 0x10, 4, 0, len(code))
    body, places = b"", []
    for part in (names, strings, symbols, code):
        body += bytes(-len(body) % 128)
        places.append((64 + 64 + len(body), len(part)))
        body += part
    headers = bytes(64)
    # Name, type, flags, link, info, alignment, bytes of an entry.
    for (name, kind, section_flags, link, info, align, entry), place in zip((
            (".shstrtab", 3, 0, 0, 0, 1, 0), (".strtab", 3, 0, 0, 0, 1, 0), (".symtab", 2, 0, 2, 1, 8, 24),
            (".text.k", 1, 6, 3, 1 | 255 << 24, 128, 0)), places, strict=True):
        at = names.index(b"\0" + name.encode() + b"\0") + 1
        headers += struct.pack("<IIQQQQIIQQ", at, kind, section_flags, 0, *place, link, info, align, entry)
    body += bytes(-len(body) % 8)
    number = int(arch.removeprefix("sm_"))
    flags = 0x0A000004 | number << 8 if arch in _SPECIFIC else 0x06000002 | number << 8
    ident = b"\x7fELF\x02\x01\x01" + bytes((65, 8)) + bytes(7)
    header = struct.pack("<16sHHIQQQIHHHHHH", ident, 2, CUDA_MACHINE, 1, 0, 0, 128 + len(body), flags, 64, 56, 0, 64,
                         5, 1)
    return header + bytes(64) + body + headers
