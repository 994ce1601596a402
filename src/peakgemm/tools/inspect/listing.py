"""The listing of one kernel: instructions with their control bits, live registers, register reads and PTX lines.

What figures need is read off the words. nvdisasm is asked for text alone: of instructions, of lines, and of the names
of instructions that the table of encodings does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

from ...errors import InvalidValue, MissingComponent
from ...sass.banks import marks, reads_of
from ...sass.elf import WORD_BYTES, Cubin
from ...sass.encoding import Word
from ...sass.listing import Line as Text
from ...sass.listing import nvdisasm, parse
from ...sass.liveness import pressure
from ...sass.loops import Loop
from ...sass.program import Program, target
from ...sass.register_reads import Rule, rule_of, steady
from .subject import Subject

_PTX_SECTION = ".nv_debug_ptx_txt"


@dataclass(frozen=True, slots=True)
class Line:
    """One instruction: ``live``, the registers in use at it (None: no path leads there), ``reads`` as of
    `sass.banks.marks`, ``extra`` the modelled cycles that its register reads cost (the mean of two turns), ``ptx`` the
    line that it came from. ``text``, ``file`` and ``line`` (of the source) are there where they were asked for."""

    address: int
    word: Word
    live: int | None
    reads: str
    extra: float
    ptx: int | None = None
    text: str = ""
    file: str | None = None
    line: int | None = None

    def to_json(self) -> dict[str, Any]:
        """What a page shows of it."""
        return {"address": f"{self.address:#08x}", "control": str(self.word.control), "text": self.text,
                "reads": self.reads, "late": self.extra > 0, "live": self.live}


@dataclass(frozen=True)
class Listing:
    """A kernel's ``code``, without the padding at its end, its main ``loop`` (None: it has no loop) and why it is that,
    and the loop's ``lines``; those of the whole kernel where it has no loop.

    ``live`` counts registers in use by place; ``ptx`` is the text.
    """

    program: Program
    code: tuple[Word, ...]
    loop: Loop | None
    why: str
    live: dict[int, int]
    lines: tuple[Line, ...]
    ptx: tuple[str, ...]
    rule: Rule | None
    notes: tuple[str, ...]

    @cached_property
    def turn(self) -> tuple[Word, ...]:
        """The instructions of the main loop."""
        return tuple(self.program.words[place] for place in self.loop.places) if self.loop else ()

    @property
    def part(self) -> str:
        """What ``lines`` are, in words."""
        return "main loop" if self.loop else "whole kernel, which has no loop"


def read(subject: Subject, with_text: bool = False) -> Listing:
    """Decode ``subject``; ``with_text`` adds the text of its instructions, linked to source lines, and to PTX where the
    cubin holds it (what is compiled with line information does).

    Raises:
        InvalidValue: an architecture whose instructions no table decodes.
        MissingComponent: nvdisasm is not there, or refuses the cubin, and its text is wanted.
    """
    texts = cache(lambda *options: _texts(subject, *options))
    strange: list[int] = []

    def name(address: int) -> str:
        """Of an instruction that no table has: what nvdisasm calls it, its opcode where nvdisasm is not there."""
        strange.append(address)
        try:
            return texts("-g")[address].opcode
        except (MissingComponent, KeyError):
            return "unknown"

    program = Program.of(subject.cubin, subject.function, name)
    notes = [f"Not in the table of encodings: {len(strange)} of {len(program.words)} instructions, the first at "
             f"{strange[0]:#x}. Nothing is known of what they read and write."] if strange else []
    code = _without_padding(program)
    loop, why = _main(program)
    try:
        rule = rule_of(subject.arch)
    except InvalidValue as error:
        rule = None
        notes.append(f"{error}. All else holds.")
    places = loop.places if loop else range(len(code))
    live = pressure(program)
    lines = _lines(program, places, live, rule)
    ptx = ptx_text(subject.cubin) if with_text else ()
    if with_text:
        if not ptx:
            notes.append("The cubin holds no PTX (compile with line information: nvcc -lineinfo), so SASS stands "
                         "alone.")
        lines = [_with_text(line, texts("-g"), texts("-gp") if ptx else {}, len(ptx)) for line in lines]
    return Listing(program, code, loop, why, live, tuple(lines), ptx, rule, tuple(notes))


def _texts(subject: Subject, option: str) -> dict[int, Text]:
    """What nvdisasm prints of each instruction of a kernel, by address."""
    symbol = next((index for index, symbol in enumerate(subject.cubin.symbols)
                   if symbol.name == subject.function and symbol.info & 15 == 2), 0)
    shown = nvdisasm(subject.cubin.data, subject.arch, "-c", option, "-fun", str(symbol))
    return {line.address: line for line in parse(shown) if line.function == subject.function}


def _with_text(line: Line, texts: dict[int, Text], origins: dict[int, Text], ptx_lines: int) -> Line:
    shown, origin = texts[line.address], origins.get(line.address)
    from_ptx = origin is not None and (origin.file or "").startswith(_PTX_SECTION)
    ptx = origin.line if origin is not None and from_ptx and origin.line and origin.line <= ptx_lines else None
    return replace(line, ptx=ptx, text=shown.text, file=shown.file, line=shown.line)


def _without_padding(program: Program) -> tuple[Word, ...]:
    """The instructions of a kernel without a branch to itself and the NOPs at its end."""
    words = program.words
    end = len(words)
    while end and (words[end - 1].name == "NOP" or (
            words[end - 1].name == "BRA" and target(words[end - 1], end - 1) == end - 1)):
        end -= 1
    return words[:end]


def _main(program: Program) -> tuple[Loop | None, str]:
    """Tensor instructions make a main loop before FFMAs do (a tensor kernel may hold an FFMA loop to fall back on)."""
    choices: tuple[tuple[Callable[[Word], bool], str], ...] = (
        # HGMMA and its like (sm_90), or those of the tensor memory of sm_100: dozens of HMMA in one.
        (lambda word: word.kind == "tensor" and ("GMMA" in word.name or word.name.startswith("UT")),
         "the loop with the most warpgroup-wide tensor instructions"),
        (lambda word: word.kind == "tensor", "the loop with the most tensor instructions"),
        (lambda word: word.is_ffma, "the loop with the most FFMA"),
        (lambda word: True, "no loop holds an FFMA: the loop with the most instructions of its own"))
    for counted, why in choices:
        loop = program.loop_with_most(counted)
        if loop is not None:
            return loop, why
    return None, "the kernel has no loop"


def _lines(program: Program, places: Sequence[int], live: dict[int, int], rule: Rule | None) -> list[Line]:
    words = [program.words[place] for place in places]
    packed = any(word.name == "FFMA2" for word in words)
    turns = steady(map(reads_of, words), rule) if rule is not None and not packed else []
    lines = []
    for place, word, *steps in zip(places, words, *turns, strict=True):
        least = rule.issue if rule is not None and word.is_ffma else 1
        cost = [step.cycles - least for step in steps if step is not None]
        reads, extra = "", 0.0
        if cost and rule is not None and word.kind != "tensor":  # whose operands are several registers each
            extra = max(sum(cost) / len(cost), 0.0)
            reads = marks(word, max(steps, key=lambda step: step.cycles if step else 0), rule)
        lines.append(Line(place * WORD_BYTES, word, live.get(place), reads, extra))
    return lines


def ptx_text(cubin: Cubin) -> tuple[str, ...]:
    """The PTX that the cubin was assembled from, its comments and directives about lines empty; nvJitLink numbers
    it."""
    section = next((one for one in cubin.sections if one.name.startswith(_PTX_SECTION)), None)
    if section is None:
        return ()
    return tuple(line.decode("utf-8", "replace") for line in cubin.content(section).split(b"\0"))
