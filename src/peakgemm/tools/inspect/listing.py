"""The listing of one kernel: instructions with their control bits, live registers, register reads and PTX lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ...errors import InvalidValue, MissingComponent
from ...sass.banks import marks, read_steps
from ...sass.control import Control
from ...sass.elf import Cubin
from ...sass.listing import Instruction, classify, nvdisasm, parse
from ...sass.loops import Loop, loops, most
from ...sass.register_reads import Rule, rule_of
from .subject import Subject

_COUNT = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/.*//\s*\|\s*(\d*)\s*\|", re.M)
_COLUMNS = re.compile(r"\s*// [|+].*$", re.M)
_CUDA_12, _CUDA_13 = (51, 7), (65, 8)  # OSABI and ABI
_PTX_SECTION = ".nv_debug_ptx_txt"


@dataclass(frozen=True, slots=True)
class Line:
    """One instruction: ``live`` registers behind it (None: not known), ``reads`` as of `sass.banks.marks`, ``extra``
    the modelled cycles that its register reads cost (the mean of two turns), ``ptx`` the line that it came from."""

    instruction: Instruction
    control: Control
    live: int | None
    reads: str
    extra: float
    ptx: int | None


@dataclass(frozen=True)
class Listing:
    """A kernel's ``code``, its main ``loop`` (None: it has no loop) and why it is that, and the loop's ``lines``; those
    of the whole kernel where it has no loop.

    ``every`` are all loops with the FFMA of their own; ``live`` counts registers by address; ``ptx`` is the text.
    """

    code: tuple[Instruction, ...]
    loop: Loop | None
    why: str
    every: tuple[tuple[int, Loop], ...]
    live: dict[int, int]
    lines: tuple[Line, ...]
    ptx: tuple[str, ...]
    rule: Rule | None
    notes: tuple[str, ...]

    @property
    def part(self) -> str:
        """What ``lines`` are, in words."""
        return "main loop" if self.loop else "whole kernel, which has no loop"


def read(subject: Subject, with_ptx: bool = False) -> Listing:
    """Disassemble ``subject``; ``with_ptx`` links SASS to source lines, and to PTX where the cubin holds it (what is
    compiled with line information does).

    Raises:
        MissingComponent: nvdisasm is not there, or refuses the cubin.
    """
    only = ["-fun", str(_symbol(subject))]
    ptx = _ptx_text(subject.cubin) if with_ptx else ()
    todays = _in_todays_format(subject)
    # nvdisasm prints live registers or lines, not both; figures need no lines.
    runs = [["-c", "-lrm", "count", *only]]
    if with_ptx:
        runs += [["-c", "-g", *only], *([["-c", "-gp", *only]] if ptx else [])]
    with ThreadPoolExecutor() as pool:
        texts = [pool.submit(nvdisasm, subject.cubin.data if place else todays, subject.arch, *options)
                 for place, options in enumerate(runs)]
    notes = []
    try:
        counted = texts[0].result()
    except MissingComponent:  # its dataflow analysis fails where control flow is unusual
        counted = nvdisasm(subject.cubin.data, subject.arch, "-c", *only)
        notes.append("nvdisasm gives no live registers for this cubin.")
    live = {int(at, 16): int(count) for at, count in _COUNT.findall(counted) if count}
    code = _of(subject, texts[1].result() if with_ptx else _COLUMNS.sub("", counted))
    origin = {}
    if ptx:
        origin = {one.address: one.line for one in _of(subject, texts[2].result())
                  if one.line is not None and (one.file or "").startswith(_PTX_SECTION) and 0 < one.line <= len(ptx)}
    elif with_ptx:
        notes.append("The cubin holds no PTX (compile with line information: nvcc -lineinfo), so SASS stands alone.")
    every = tuple(loops(code))
    loop, why = _main(code, every)
    try:
        rule = rule_of(subject.arch)
    except InvalidValue as error:
        rule = None
        notes.append(f"{error}. All else holds.")
    lines = _lines(subject, loop.instructions if loop else code, live, origin, rule)
    return Listing(code, loop, why, every, live, lines, ptx, rule, tuple(notes))


def _in_todays_format(subject: Subject) -> bytes:
    """A cubin of CUDA 12 with the ELF header of CUDA 13: of others nvdisasm 13 analyses no dataflow.

    Only the header differs: OSABI and ABI (bytes 7, 8), and where in the flags (bytes 48 to 51) the architecture is.
    """
    data = subject.cubin.data
    if subject.cubin.abi != _CUDA_12:
        return data
    return data[:7] + bytes(_CUDA_13) + data[9:48] + bytes((4, subject.number, 0, 10)) + data[52:]


def _of(subject: Subject, text: str) -> tuple[Instruction, ...]:
    """The instructions of the one function, without the padding at its end (a branch to itself, and NOP)."""
    code = [one for one in parse(text) if one.function == subject.function]
    while code and (code[-1].base == "NOP" or (code[-1].base == "BRA" and code[-1].target == code[-1].address)):
        code.pop()
    return tuple(code)


def _main(code: tuple[Instruction, ...], every: tuple[tuple[int, Loop], ...]) -> tuple[Loop | None, str]:
    """Tensor instructions make a main loop before FFMAs do (a tensor kernel may hold an FFMA loop to fall back on)."""
    for what, counted in (("warpgroup-wide tensor instructions", _is_wide_tensor), ("tensor instructions", _is_tensor)):
        tensor = most(loops(code, counted))
        if tensor is not None:
            return tensor, f"the loop with the most {what}"
    ffma = most(every)
    if ffma is not None:
        return ffma, "the loop with the most FFMA"
    longest = most(loops(code, lambda one: True))
    if longest is not None:
        return longest, "no loop holds an FFMA: the loop with the most instructions of its own"
    return None, "the kernel has no loop"


def _is_tensor(instruction: Instruction) -> bool:
    return classify(instruction) == "tensor"


def _is_wide_tensor(instruction: Instruction) -> bool:
    """One of HGMMA and its like (sm_90), or of the tensor memory of sm_100: dozens of HMMA in one."""
    return _is_tensor(instruction) and ("GMMA" in instruction.base or instruction.base.startswith("UT"))


def _lines(subject: Subject, code: Sequence[Instruction], live: dict[int, int], origin: dict[int, int],
           rule: Rule | None) -> tuple[Line, ...]:
    words = subject.cubin.words(subject.function)
    packed = any(one.base == "FFMA2" for one in code)
    turns = read_steps(code, rule) if rule is not None and not packed else []
    found = []
    for place, one in enumerate(code):
        steps = [turn[place] for turn in turns]
        least = rule.issue if rule is not None and one.is_ffma else 1
        cost = [step.cycles - least for step in steps if step is not None]
        extra = max(sum(cost) / len(cost), 0.0) if cost and not _is_tensor(one) else 0.0
        text = ""
        if steps and rule is not None and not _is_tensor(one):  # whose operands are several registers each
            text = marks(one, max(steps, key=lambda step: step.cycles if step else 0), rule)
        found.append(Line(one, Control.decode(words[one.address // 16]), live.get(one.address), text, extra,
                          origin.get(one.address)))
    return tuple(found)


def _symbol(subject: Subject) -> int:
    """The index of the kernel's symbol, which nvdisasm asks for."""
    return next((index for index, one in enumerate(subject.cubin.symbols)
                 if one.name == subject.function and one.info & 15 == 2), 0)


def _ptx_text(cubin: Cubin) -> tuple[str, ...]:
    """The PTX that the cubin was assembled from, its comments and directives about lines empty; nvJitLink numbers
    it."""
    section = next((one for one in cubin.sections if one.name.startswith(_PTX_SECTION)), None)
    if section is None:
        return ()
    return tuple(line.decode("utf-8", "replace") for line in cubin.content(section).split(b"\0"))
