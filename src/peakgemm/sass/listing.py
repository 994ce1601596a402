"""SASS as nvdisasm prints it, for people to read: figures come from the words themselves (`program`)."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import InvalidValue, MissingComponent

NVDISASM = "nvidia-cuda-nvdisasm"
_LINE = re.compile(r"\s*/\*(?P<address>[0-9a-f]{4,})\*/\s+\{?\s*(?P<text>(?:@!?U?P[0-9T]+\s+)?"
                   r"(?P<opcode>[A-Z][A-Z0-9_]*)[^;]*?)"
                   # After the operands, by version of nvdisasm: scheduling (&wr=0x0 ?trans1), remarks (*"Spill"*).
                   r"\s*(?:[&?]\S+?\s*|\(\*.*?\*\)\s*)*;")
_SECTION = re.compile(r"^\s*\.section\s+\.text\.([^,\s]+)")
_FILE_LINE = re.compile(r'//## File "([^"]*)", line (\d+)')


@dataclass(frozen=True, slots=True)
class Line:
    """One instruction of ``function`` as text (``@!P0 LDS.128 R4, [R1]``), its ``opcode`` without modifiers.

    ``file`` and ``line`` are where the source put it, None in a listing without line information.
    """

    function: str
    address: int
    opcode: str
    text: str
    file: str | None = None
    line: int | None = None


def nvdisasm(cubin: bytes, arch: str, *options: str) -> str:
    """What nvdisasm prints of ``cubin`` with ``options``; ``arch`` is for the message alone.

    Raises:
        InvalidValue: bytes that are not a cubin.
        MissingComponent: nvdisasm is not there, or refuses this architecture.
    """
    if not cubin.startswith(b"\x7fELF"):
        raise InvalidValue(f"{len(cubin)} bytes that are not a cubin: they start with {cubin[:4]!r}, an ELF file with "
                           "b'\\x7fELF'; compile to cubin, not to PTX")
    tool = find_nvdisasm()
    # nvdisasm seeks in its input, so a pipe will not do.
    with tempfile.TemporaryDirectory(prefix="peakgemm-") as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        try:
            run = subprocess.run([tool, *options, str(path)], capture_output=True, text=True, errors="replace",
                                 check=False)
        except OSError as error:
            raise MissingComponent(f"{tool} cannot be run ({error.strerror}); run: pip install {NVDISASM}") from None
    if run.returncode != 0:
        said = (run.stderr or run.stdout).strip().replace(str(path), "the cubin") or f"exit code {run.returncode}"
        raise MissingComponent(f"nvdisasm refuses the cubin for {arch} ({said}); if the cubin is whole, "
                               f"nvdisasm is too old or has dropped {arch}; run: pip install --upgrade {NVDISASM}")
    return run.stdout


def find_nvdisasm() -> str:
    """Path of nvdisasm: the package's, else the one on PATH."""
    try:
        from cuda.pathfinder import find_nvidia_binary_utility
    except ImportError:
        found = None
    else:
        found = find_nvidia_binary_utility("nvdisasm")
    found = found or shutil.which("nvdisasm")
    if found is None:
        raise MissingComponent(f"nvdisasm, which lists SASS, is not installed; run: pip install {NVDISASM}")
    return str(found)


def parse(listing: str) -> Iterator[Line]:
    """The instructions of an nvdisasm listing, in order, its functions one after the other.

    The padding that closes a section (NOP after a branch to itself) is kept: it has addresses too.
    """
    function, file, line = "", None, None
    for text in listing.splitlines():
        if match := _LINE.match(text):
            yield Line(function, int(match["address"], 16), match["opcode"], match["text"].strip(), file, line)
        elif match := _FILE_LINE.search(text):
            file, line = match[1], int(match[2])
        elif match := _SECTION.match(text):
            function, file, line = match[1], None, None
