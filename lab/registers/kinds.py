"""Which streams are measured: named ones, each a statement about the register file, and drawn ones by kind.

A pattern writes an FFMA's slots a, b, c as three letters: ``0`` an even register, ``1`` an odd one, each time another;
``-`` none; ``x`` and ``y``, ``X`` and ``Y`` one even and one odd register each, the capital with ``.reuse``. FFMAs
write even and odd registers in turn, or as ``e``, ``o`` or ``n`` (none) behind the letters says. Others stand by their
names; ``*63`` is so many in a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from lab.registers.streams import RZ, Bed, Op, Stream
from lab.registers.write_backs import LOADED

_HELD = {"x": (0, 0), "X": (0, 1), "y": (1, 0), "Y": (1, 1)}
#: How many registers of either parity are written, the rest is read.
_WRITTEN = 16
_LATENCY = 4  # instructions from an FFMA to the first that may read its result

#: Statement, pattern, and what a turn takes by hand, in cycles.
NAMED: tuple[tuple[str, str, int], ...] = (
    ("one read of each bank", "-01", 1),
    ("two reads of a bank", "-00", 2),
    ("three reads of a bank", "000", 3),
    ("two of a bank, two of the other in turn", "-00 -11", 2),
    ("the same, two in a row of each", "-00 -00 -11 -11", 6),
    ("the same, four in a row of each", " ".join(["-00"] * 4 + ["-11"] * 4), 14),
    ("three of a bank, three of the other in turn", "000 111", 3),
    ("two of one and one of the other, in turn", "011 001", 3),
    ("two of a bank, then one of each", "-00 -01", 3),
    ("two of a bank, three times one of each", "-00 -01 -01 -01", 5),
    ("one bank by the same two slots, twice in a row", "--- 1-1 1-1 -00", 5),
    ("one bank by other pairs of slots", "0-0 0-- 011 11-", 4),
    ("a held by .reuse", "X01", 1),
    ("a held, b and c of one bank", "X00", 2),
    ("a held even and held odd in turn", "X01 Y01", 2),
    ("a held, asked at each second instruction only", "X01 -01", 2),
    ("a held, each second read does not renew it", "X01 x01", 3),
    ("one register in two slots", "xx1", 1),
    ("one register in three slots", "xxx", 1),
    ("a and b held", "XY0", 1),
    ("an LDS of an even register, FFMAs that write such", "LDS ---e*127", 131),
    ("the same, FFMAs that write odd ones", "LDS ---o*127", 128),
    ("an LDS.64, FFMAs that write odd ones", "LDS.64 ---o*127", 131),
    ("an LDS.64, even and odd in turn", "LDS.64 ---*127", 131),
    ("an LDS.64, FFMAs that write nothing", "LDS.64 ---n*127", 128),
    ("an LDS.128, even and odd in turn", "LDS.128 ---*127", 131),
    ("an LDS.64, a NOP 11 behind it", "LDS.64 ---*10 NOP ---*52", 67),
    ("the same, 15 behind it", "LDS.64 ---*14 NOP ---*48", 64),
    ("the same, 29 behind it", "LDS.64 ---*28 NOP ---*34", 64),
    ("the same, 31 behind it", "LDS.64 ---*30 NOP ---*32", 66),
    ("the same, 33 behind it", "LDS.64 ---*32 NOP ---*30", 67),
    ("an LDS.128, a NOP 20 behind it", "LDS.128 ---*19 NOP ---*43", 67),
    ("the same, two NOPs", "LDS.128 ---*19 NOP*2 ---*42", 64),
    ("two LDS.128 14 apart", "LDS.128 ---*13 LDS.128 ---*113", 134),
    ("two LDS.128 16 apart", "LDS.128 ---*15 LDS.128 ---*111", 131),
    ("an LDS.64 each 16", "LDS.64 ---*15", 16),
)


def from_pattern(pattern: str, bed: Bed) -> Stream:
    """The stream that ``pattern`` means."""
    pools = [bed.even[_WRITTEN:-2], bed.odd[_WRITTEN:-2]]
    held = bed.even[-2], bed.odd[-2]
    taken, ops = [0, 0], []
    repeated = (part.split("*") for part in pattern.split())
    for number, what in enumerate(name for name, *times in repeated for _ in range(int(times[0]) if times else 1)):
        if what in LOADED or what == "NOP":
            ops.append(Op(bed.quads[number % 4] if what in LOADED else RZ, name=what))
            continue
        reads, reuse = [], 0
        for slot, letter in enumerate(what[:3]):
            if letter == "-":
                reads.append(RZ)
            elif letter in _HELD:
                bank, keep = _HELD[letter]
                reads.append(held[bank])
                reuse |= keep << slot
            else:
                bank = int(letter)
                reads.append(pools[bank][taken[bank] % len(pools[bank])])
                taken[bank] += 1
        ops.append(Op(_written(bed, number, what[3:]), (reads[0], reads[1], reads[2]), reuse))
    return tuple(ops)


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to draw streams; ``share`` of a hundred drawn ones are of it."""

    name: str
    what: str
    share: int
    draw: Callable[[Random, Bed], Stream]


def drawn(count: int, seed: int, bed: Bed) -> list[tuple[Kind, Stream]]:
    """About ``count`` streams, by kind, the same for the same ``seed`` and compiler."""
    found = []
    for kind in KINDS:
        random = Random(f"{seed} {kind.name}")
        found += [(kind, kind.draw(random, bed)) for _ in range(max(1, round(count * kind.share / 100)))]
    return found


def _written(bed: Bed, number: int, which: str = "") -> int:
    """Even and odd in turn, or one of ``which``: e, o, n (none)."""
    if which == "n":
        return RZ
    pool = (bed.even, bed.odd)["eo".index(which) if which else number % 2]
    return pool[number // 2 % _WRITTEN]


def _ports(random: Random, bed: Bed) -> Stream:
    """Random parities and empty slots, no register twice in a row."""
    length = random.choice((4, 8, 16))
    return from_pattern(" ".join("".join(random.choice("-01") for _ in range(3)) for _ in range(length)), bed)


def _reuse(random: Random, bed: Bed) -> Stream:
    """Few registers a slot, ``.reuse`` at random, where it is of use and where it is not."""
    length, sources = random.choice((4, 8, 16)), bed.even[_WRITTEN:] + bed.odd[_WRITTEN:]
    pools = [random.sample(sources, random.choice((1, 2, 2, 3, 4))) for _ in range(3)]
    if random.random() < 0.3:
        pools[random.randrange(3)] = [RZ]
    chance, ops = random.random(), []
    for number in range(length):
        a, b, c = (random.choice(pool) for pool in pools)
        reuse = sum((random.random() < chance) << slot for slot, register in enumerate((a, b, c)) if register != RZ)
        ops.append(Op(_written(bed, number), (a, b, c), reuse))
    return tuple(ops)


def _accumulate(random: Random, bed: Bed) -> Stream:
    """As in a product's loop: c is what is written, ``.reuse`` where the next instruction asks the same again. A sum
    comes again after four instructions at the earliest, as a compiler may have it."""
    length, sums = 16, [*bed.even[:_WRITTEN], *bed.odd[:_WRITTEN]]
    sources, stay = bed.even[_WRITTEN:] + bed.odd[_WRITTEN:], random.random()
    a = b = random.choice(sources)
    reads: list[tuple[int, int, int]] = []
    for number in range(length):
        near = {one[2] for one in (*reads[-_LATENCY + 1:], *reads[:max(0, number + _LATENCY - length)])}
        a = a if number and random.random() < stay else random.choice(sources)
        b = b if number and random.random() < stay / 2 else random.choice(sources)
        reads.append((a, b, random.choice([one for one in sums if one not in near])))
    ops = []
    for number, (a, b, c) in enumerate(reads):
        after = reads[(number + 1) % length]
        ops.append(Op(c, (a, b, c), (a == after[0]) | (b == after[1]) << 1))
    return tuple(ops)


def _among(random: Random, bed: Bed, op: Callable[[Random], Op]) -> Stream:
    """One other instruction among FFMAs that read one, or each, bank in full, or none."""
    length = random.choice((8, 16, 32))
    pattern = random.choice(("-01", "0--", "1--", "X01", "XY-", "---"))
    ops = list(from_pattern(" ".join([pattern] * length), bed))
    parity = random.choice((None, 0, 1))
    if parity is not None:  # what FFMAs write lies in one bank
        ops = [Op((bed.even, bed.odd)[parity][n % _WRITTEN], one.reads, one.reuse) for n, one in enumerate(ops)]
    ops[random.randrange(length)] = op(random)
    return tuple(ops)


def _other(random: Random, bed: Bed) -> Op:
    name = random.choice(("NOP", "MOV", "IADD3", "IMAD"))
    if name == "NOP":
        return Op(RZ, name=name)
    a, b, c = random.sample(bed.even[_WRITTEN:-2] + bed.odd[_WRITTEN:-2], 3)
    written = random.choice((bed.even, bed.odd))[_WRITTEN - 1]
    return Op(written, (RZ, b, RZ) if name == "MOV" else (a, b, c), name=name)


def _others(random: Random, bed: Bed) -> Stream:
    return _among(random, bed, lambda random: _other(random, bed))


def _load(random: Random, bed: Bed) -> Op:
    """A load of any width, every other one with an address register. Nothing writes that, so it stays zero."""
    name = random.choice(tuple(LOADED))
    address = random.choice((RZ, RZ, bed.even[_WRITTEN], bed.odd[_WRITTEN]))
    within = random.randrange(4) // LOADED[name] * LOADED[name]
    return Op(random.choice(bed.quads) + within, (address, RZ, RZ), name=name)


def _loads(random: Random, bed: Bed) -> Stream:
    return _among(random, bed, lambda random: _load(random, bed))


def _mixed(random: Random, bed: Bed) -> Stream:
    """Several loads, and some other instructions, among FFMAs whose reads and writes lie anyhow."""
    length = random.choice((16, 32, 64))
    reads = " ".join(random.choice(("-01", "0-1", "1--", "---", "-00 -11", "01- 1-1")) for _ in range(length))
    ops = list(from_pattern(" ".join(reads.split()[:length]), bed))
    parity = random.choice((None, None, 0, 1))
    if parity is not None:
        ops = [Op((bed.even, bed.odd)[parity][n % _WRITTEN], one.reads) for n, one in enumerate(ops)]
    for place in random.sample(range(length), random.choice((1, 2, 3, length // 8))):
        ops[place] = _load(random, bed)
    for place in random.sample(range(length), random.choice((0, 0, 1, 2))):
        ops[place] = _other(random, bed)
    return tuple(ops)


KINDS = (
    Kind("ports", "FFMA, no .reuse, registers of random parity", 20, _ports),
    Kind("reuse", "FFMA, few registers, .reuse at random", 20, _reuse),
    Kind("accumulate", "FFMA as in a product's loop", 20, _accumulate),
    Kind("others", "a NOP, MOV, IADD3 or IMAD among FFMAs", 14, _others),
    Kind("loads", "an LDS of 1, 2 or 4 registers among FFMAs", 13, _loads),
    Kind("mixed", "several LDS, and others, among FFMAs", 13, _mixed),
)
#: Kinds of FFMAs alone.
FFMA_KINDS = ("named", "ports", "reuse", "accumulate")
