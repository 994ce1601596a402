"""Streams: short loops of instructions with chosen registers and ``.reuse``, written over the FFMAs of a compiled loop.

``streams.cu`` holds the loop. It is compiled once; a stream is then a cubin of its own, made by `Bed.patched` without a
compiler. Registers are chosen freely: the results mean nothing, only the clock does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.registers.pipes import Pipes
from lab.registers.write_backs import LOADED, WriteBacks
from peakgemm.errors import InvalidValue
from peakgemm.runtime.compile import Compiled, compile_source
from peakgemm.sass.control import NO_BARRIER, Control
from peakgemm.sass.elf import Cubin
from peakgemm.sass.register_file import STAGES, RegisterFile

SOURCE = Path(__file__).with_suffix(".cu")
ENTRY = "clocked_stream"
#: FFMAs of a turn of the compiled loop. Streams of 1, 2, 4 ... 64 instructions fill it.
WORDS = 512
RZ = 255
#: The architecture whose instruction words these are, and whose register file the model is of.
ARCH = "sm_90"
_FFMA_OPCODE, _OPCODE_BITS = 0x223, 0xFFF
_SHARED_OFFSET = 0x400  # bytes, what LDS reads: one address for all lanes, so one wavefront
SHARED_BYTES = 4096
_ENOUGH = 36  # registers of either parity: 16 to write, the rest to read

# Words without registers and control bits, read off ptxas's output for sm_90.
_BLANK = {
    "FFMA": 0x7223, "IADD3": 0x07FFE000 << 64 | 0x7210, "IMAD": 0x078E0200 << 64 | 0x7224, "MOV": 0x0F00 << 64 | 0x7202,
    "NOP": 0x7918, "LDS": 0x0800 << 64 | 0x7984, "LDS.64": 0x0A00 << 64 | 0x7984, "LDS.128": 0x0C00 << 64 | 0x7984}
#: Cycles that the compiled loop takes for its turn, beside its words, in which loads are written: 534.2 for 512 NOPs.
TURN = 22


@dataclass(frozen=True, slots=True)
class Op:
    """One instruction of a stream: what it writes, the registers in its fields a, b, c (`RZ`: none), and the reuse bits
    (a = 1, b = 2, c = 4). MOV has b alone, a load its address in a, or none; NOP has none."""

    written: int
    reads: tuple[int, int, int] = (RZ, RZ, RZ)
    reuse: int = 0
    name: str = "FFMA"

    def __str__(self) -> str:
        """``12 66. 71 -``: the register written, those of a, b, c (``.`` for .reuse, ``-`` for none); others than FFMA
        with their name in front."""
        slots = " ".join("-" if register == RZ else f"{register}{'.' if self.reuse >> slot & 1 else ''}"
                         for slot, register in enumerate(self.reads))
        if self.name == "NOP":
            return self.name
        if self.name in LOADED:
            return f"{self.name} {self.written}" + (f" {slots.split()[0]}" if self.reads[0] != RZ else "")
        return f"{self.written} {slots}" if self.name == "FFMA" else f"{self.name} {self.written} {slots}"

    @property
    def registers(self) -> tuple[int | None, ...]:
        """What the banks are asked for, by slots. A load has its address in field a, and reads it by slot b."""
        a, b, c = (None if register == RZ else register for register in self.reads)
        return (None, a, None) if self.name in LOADED else (a, b, c)

    def word(self) -> int:
        """The 128 bits: stall 1, no yield, no waits; a load sets scoreboard 0."""
        word, (a, b, c) = _BLANK[self.name], self.reads
        barrier = NO_BARRIER
        if self.name in LOADED:
            word |= self.written << 16 | a << 24 | _SHARED_OFFSET << 40
            barrier = 0
        elif self.name == "MOV":
            word |= self.written << 16 | b << 32
        elif self.name != "NOP":
            word |= self.written << 16 | a << 24 | b << 32 | c << 64
        return Control(stall=1, yield_=1, write_barrier=barrier, read_barrier=NO_BARRIER, wait_mask=0,
                       reuse=self.reuse).encode(word)


Stream = tuple[Op, ...]


def text(stream: Stream) -> str:
    """A stream in one line."""
    return " | ".join(map(str, stream))


def parse(line: str) -> Stream:
    """The stream that `text` wrote.

    Raises:
        InvalidValue: an instruction of another form.
    """
    return tuple(_op(one) for one in line.split(" | "))


def _op(line: str) -> Op:
    name, *rest = line.split() if line[:1].isalpha() else ("FFMA", *line.split())
    try:
        if name not in _BLANK or len(rest) not in ((0,) if name == "NOP" else (1, 2) if name in LOADED else (4,)):
            raise ValueError
        written, *slots = rest or [str(RZ)]
        reads = [RZ if slot == "-" else int(slot.removesuffix(".")) for slot in slots] + [RZ] * (3 - len(slots))
        reuse = sum(slot.endswith(".") << place for place, slot in enumerate(slots))
        return Op(int(written), (reads[0], reads[1], reads[2]), reuse, name)
    except ValueError:
        raise InvalidValue(f"{line!r} is no instruction of a stream; write it as '12 66. 71 -', 'MOV 12 - 45 -', "
                           "'LDS.64 84' or 'NOP'") from None


def predicted(stream: Stream, stages: int = STAGES) -> float:
    """Modelled issue cycles an instruction, one sub-partition at work: `RegisterFile`, and with loads `Pipes` and
    `WriteBacks`."""
    file, turns, warm = RegisterFile(stages), 8, 4
    if not any(op.name in LOADED for op in stream):
        cycles = [sum(file.read(op.registers, op.reuse, op.written).cycles for op in stream)
                  for _ in range(warm + turns)]
        return sum(cycles[warm:]) / turns / len(stream)
    pipes, ports, now, ends = Pipes(), WriteBacks(), 0, []
    turns, warm = 4, 2  # of the whole loop: where a load stands in it matters
    for _ in range(warm + turns):
        for op in stream * (WORDS // len(stream)):
            written = None if op.written == RZ else op.written
            load = op.name in LOADED
            ready = now + file.read(op.registers, op.reuse, None if load else written, load).cycles
            if load:
                now = ports.load(ready, op.name, op.written, op.reads[0] != RZ)
            else:
                now = ports.arithmetic(pipes.issue(ready, op.name), written)
            file.hold(now - ready)
        now += TURN
        ends.append(now)
    return ((ends[-1] - ends[warm - 1]) / turns - TURN) / WORDS


@dataclass(frozen=True, slots=True)
class Bed:
    """The compiled loop that streams are written into.

    ``places`` are the numbers of its FFMA words, ``even`` and ``odd`` the registers that a stream may use.
    """

    compiled: Compiled
    places: tuple[int, ...]
    even: tuple[int, ...]
    odd: tuple[int, ...]

    @classmethod
    def make(cls) -> Bed:
        """Compile ``streams.cu`` for sm_90 and find its loop.

        Raises:
            MissingComponent, CompileFailed: see `compile_source`.
            InvalidValue: this compiler makes something else of the source than one loop of 512 FFMAs.
        """
        compiled = compile_source(SOURCE.read_text(encoding="utf-8"), ENTRY, ARCH, name=SOURCE.name)
        return cls.of(compiled)

    @classmethod
    def of(cls, compiled: Compiled) -> Bed:
        """The bed that a compilation of ``streams.cu`` is; raises as `make` does."""
        words = Cubin.read(compiled.code).words(ENTRY)
        places = tuple(place for place, word in enumerate(words) if word & _OPCODE_BITS == _FFMA_OPCODE)
        if len(places) != WORDS or places[-1] - places[0] >= WORDS + 8:
            raise InvalidValue(f"{SOURCE.name} has {len(places)} FFMAs, expected {WORDS} in one loop; this NVRTC "
                               "compiles it otherwise: use the NVRTC that constraints.txt names")
        used = {register for place in places for register in _fields(words[place])}
        # What the loop's own words might name, its counter above all, is left alone; some of these are no registers.
        for place in set(range(places[0] - 1, places[-1] + 2)).difference(places):
            used.difference_update(_fields(words[place]))
        used.discard(RZ)
        even, odd = (tuple(sorted(r for r in used if r % 2 == parity)) for parity in (0, 1))
        if min(len(even), len(odd)) < _ENOUGH:
            raise InvalidValue(f"{SOURCE.name} leaves {len(even)} even and {len(odd)} odd registers to streams, "
                               f"{_ENOUGH} of each are needed; use the NVRTC that constraints.txt names")
        return cls(compiled, places, even, odd)

    @property
    def quads(self) -> tuple[int, ...]:
        """Where loads go: the last four numbers, multiples of 4, that each start four free registers."""
        free = {*self.even, *self.odd}
        return tuple(q for q in range(0, RZ - 4, 4) if free.issuperset(range(q, q + 4)))[-4:]

    def patched(self, stream: Stream) -> Compiled:
        """A cubin whose loop is ``stream``, again and again.

        Raises:
            InvalidValue: a length that does not fill the loop, or a register that is not the bed's.
        """
        if not stream or WORDS % len(stream):
            raise InvalidValue(f"a stream of {len(stream)} instructions does not fill {WORDS}; give a power of 2, "
                               f"{WORDS} at most")
        free = {*self.even, *self.odd, RZ}
        for op in stream:
            named = {*op.reads, *range(op.written, op.written + LOADED.get(op.name, 1))}
            if op.name != "NOP" and (foreign := sorted(named - free)):
                raise InvalidValue(f"{op}: registers {foreign} are not free in {SOURCE.name}; choose from Bed.even and "
                                   "Bed.odd")
        cubin = Cubin.read(self.compiled.code)
        words, encoded = list(cubin.words(ENTRY)), [op.word() for op in stream]
        for number, place in enumerate(self.places):
            words[place] = encoded[number % len(encoded)]
        return Compiled(ENTRY, ARCH, "cubin", cubin.with_words(words, ENTRY))


def _fields(word: int) -> Sequence[int]:
    """The four register fields of an arithmetic instruction: written, a, b, c."""
    return [word >> at & 0xFF for at in (16, 24, 32, 64)]
