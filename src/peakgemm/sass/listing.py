"""SASS as nvdisasm prints it: instructions and what they are made of.

The main loop is found in `loops`; what its register reads cost, in `peakgemm.sass.banks`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import InvalidValue, MissingComponent
from ..runtime.architectures import architecture

INSTRUCTION_BYTES = 16
NVDISASM = "nvidia-cuda-nvdisasm"
#: Opcodes whose access widths `Mix` counts.
WIDE = ("LDG", "LDS", "STS", "STG", "LDGSTS")
#: The classes of `classify`, in the order in which tables show them.
CLASSES = ("ffma", "float", "tensor", "integer", "memory", "barrier", "branch", "move", "other")

_MOVE = frozenset({"MOV", "S2R", "S2UR", "CS2R", "R2UR", "R2P", "P2R", "UP2UR", "UR2UP", "MOVM"})
_BARRIER = frozenset({
    "BAR", "DEPBAR", "LDGDEPBAR", "MEMBAR", "WARPSYNC", "SYNCS", "ERRBAR", "CGAERRBAR", "NANOSLEEP", "FENCE",
    "ARRIVES", "ACQBULK", "WARPGROUP", "PREEXIT", "SETMAXREG", "CGABAR_ARV", "CGABAR_WAIT", "YIELD",
})
_BRANCH = frozenset({
    "BRA", "BRX", "BRXU", "JMP", "JMX", "JMXU", "CALL", "RET", "EXIT", "BSSY", "BSYNC", "BREAK", "BMOV", "KILL",
    "RPCMOV", "BPT", "LEPC",
})
# By the start of the name; tried in this order, so that STS is not taken for something that starts with S.
_KINDS = (
    ("tensor", re.compile(r"[HIDQOB]G?MMA|UT[CQO]\w*MMA")),
    ("memory", re.compile(r"LD|ST|ATOM|RED(?!UX)|CCTL|TEX|TLD|TXD|SU(ATOM|LD|RED|ST)|SHFL|UBLK|UTMA|QSPC")),
    ("integer", re.compile(r"IADD|IMAD|IMUL|IMNMX|IABS|ISETP|ISCADD|IDP|I2I|VI|VABSDIFF|LEA|LOP|PLOP|SHF|SHL|SHR|SEL|"
                           r"PRMT|POPC|FLO|BREV|BMSK|SGXT|VOTE|PSET|REDUX|CREDUX|MATCH|ELECT")),
    ("float", re.compile(r"F|D(ADD|MUL|FMA|SETP|MNMX)|H(ADD|MUL|FMA|SET|MNMX)|MUFU|I2F")),
)

_LINE = re.compile(
    r"\s*/\*(?P<address>[0-9a-f]{4,})\*/\s+\{?\s*(?P<text>(?:(?P<guard>@!?U?P[0-9T]+)\s+)?"
    r"(?P<opcode>[A-Z][A-Z0-9_]*(?:\.[A-Za-z0-9_]+)*)(?P<operands>[^;]*?))"
    # After the operands, by version of nvdisasm: scheduling (&wr=0x0 ?trans1), remarks (*"SpillRefill"*).
    r"\s*(?:[&?]\S+?\s*|\(\*.*?\*\)\s*)*;")
_LABEL = re.compile(r"^([.$\w]+):\s*$")
_SECTION = re.compile(r"^\s*\.section\s+\.text\.([^,\s]+)")
_FILE_LINE = re.compile(r'//## File "([^"]*)", line (\d+)')
_TARGET = re.compile(r"`\(([^)]+)\)")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One SASS instruction.

    ``predicate`` is its guard (``@!P0``) or empty, ``opcode`` includes the modifiers (``LDS.128``),
    ``operands`` are as printed (``R4.reuse``, ``-R2``), destination first. ``target`` is the address that
    a label among the operands stands for, in the same ``function``. ``file`` and ``line`` are where the
    source put it, None in a listing without line information.
    """

    address: int
    predicate: str
    opcode: str
    operands: tuple[str, ...]
    text: str
    function: str = ""
    target: int | None = None
    file: str | None = None
    line: int | None = None

    @property
    def base(self) -> str:
        """The opcode without its modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def runs(self) -> bool:
        """False under a guard that is never true: ptxas puts ``@!PT LDS RZ, [RZ]`` before LDGSTS, as padding."""
        return self.predicate not in ("@!PT", "@!UPT")

    @property
    def is_ffma(self) -> bool:
        """Whether it is an FP32 multiply-add (FFMA2, two of them packed, is one instruction)."""
        return self.base in ("FFMA", "FFMA2")


@dataclass(frozen=True, slots=True)
class Mix:
    """What a stretch of SASS is made of.

    ``widths`` counts accesses by opcode and bits a thread (``{"LDS": {"128": 4}}``), ``classes`` counts
    instructions by each of `CLASSES`.
    """

    instructions: int
    ffma: int
    widths: dict[str, dict[str, int]]
    classes: dict[str, int]

    @property
    def ffma_fraction(self) -> float:
        """The share of FFMA among the instructions: what the FP32 pipe gets of the issue slots."""
        return self.ffma / self.instructions if self.instructions else 0.0


def disassemble(cubin: bytes, arch: str) -> str:
    """The code sections of ``cubin`` as nvdisasm lists them, with line information where it has any.

    One run of nvdisasm a call, a few tenths of a second: keep the result.

    Raises:
        InvalidValue: unknown architecture, or bytes that are not a cubin.
        MissingComponent: nvdisasm is not there, or refuses this architecture.
    """
    architecture(arch)
    return nvdisasm(cubin, arch, "-c", "-g")


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


def parse(listing: str) -> tuple[Instruction, ...]:
    """The instructions of an nvdisasm listing, in order, its functions one after the other.

    The padding that closes a section (NOP after a branch to itself) is kept: it has addresses too.
    """
    labels: dict[tuple[str, str], int] = {}
    rows: list[tuple[re.Match[str], str, str | None, int | None]] = []
    waiting: list[str] = []
    function, file, line = "", None, None
    for text in listing.splitlines():
        if match := _LINE.match(text):
            rows.append((match, function, file, line))
            for label in waiting:
                labels[function, label] = int(match["address"], 16)
            waiting.clear()
        elif match := _FILE_LINE.search(text):
            file, line = match[1], int(match[2])
        elif match := _LABEL.match(text):
            waiting.append(match[1])
        elif match := _SECTION.match(text):
            function, file, line = match[1], None, None
            waiting.clear()
    return tuple(_instruction(match, function, file, line, labels) for match, function, file, line in rows)


def _instruction(match: re.Match[str], function: str, file: str | None, line: int | None,
                 labels: dict[tuple[str, str], int]) -> Instruction:
    operands = tuple(part.strip() for part in match["operands"].split(",")) if match["operands"].strip() else ()
    named = _TARGET.search(match["operands"])
    return Instruction(int(match["address"], 16), match["guard"] or "", match["opcode"], operands,
                       match["text"].strip(), function, labels.get((function, named[1])) if named else None, file, line)


def width(instruction: Instruction) -> int:
    """Bits that a memory instruction moves for each thread: 32 unless a modifier says otherwise."""
    for modifier in instruction.opcode.split(".")[1:]:
        if modifier in ("64", "128", "256"):
            return int(modifier)
        if modifier in ("U8", "S8", "U16", "S16"):
            return int(modifier[1:])
    return 32


def classify(instruction: Instruction) -> str:
    """Which of `CLASSES` an instruction belongs to.

    Zeroing and copying in an arithmetic disguise (``HFMA2.MMA R0, -RZ, RZ, 0, 0``, ``IMAD.MOV.U32``)
    count as moves. Uniform-datapath instructions count with their per-thread twins, loads from the
    constant bank and shuffles with memory, the bookkeeping of divergence (BSSY, BSYNC) with branches,
    and what never runs (`Instruction.runs`) with NOP under "other": it takes an issue slot, no more.
    """
    if not instruction.runs:
        return "other"
    base = instruction.base
    # A leading U is the uniform datapath's, except in the few names that only exist with it.
    names = (base, base[1:]) if base.startswith("U") else (base,)
    if instruction.is_ffma:
        return "ffma"
    if not _BARRIER.isdisjoint(names):
        return "barrier"
    if base in _BRANCH:
        return "branch"
    if _is_move(instruction):
        return "move"
    return next((kind for name in names for kind, pattern in _KINDS if pattern.match(name)), "other")


def _is_move(instruction: Instruction) -> bool:
    base = instruction.base
    if base in _MOVE or (base.startswith("U") and base[1:] in _MOVE):
        return True
    if base in ("IMAD", "UIMAD", "HFMA2", "UHFMA2"):
        # 0 * 0 + x: the multiplier pipe used as a second way to copy.
        factors = [operand.lstrip("-") for operand in instruction.operands[1:3]]
        return ".MOV" in instruction.opcode or all(factor in ("RZ", "URZ") for factor in factors)
    return False


def mix(instructions: Iterable[Instruction]) -> Mix:
    """Counts of ``instructions`` by width and by class."""
    classes = dict.fromkeys(CLASSES, 0)
    widths: dict[str, Counter[int]] = {}
    total = ffma = 0
    for instruction in instructions:
        total += 1
        ffma += instruction.is_ffma
        classes[classify(instruction)] += 1
        if instruction.base in WIDE and instruction.runs:
            widths.setdefault(instruction.base, Counter())[width(instruction)] += 1
    return Mix(total, ffma, {opcode: {str(bits): widths[opcode][bits] for bits in sorted(widths[opcode])}
                             for opcode in WIDE if opcode in widths}, classes)
