"""Ask nvdisasm where words keep their registers and what they do with them: the experiments of lab/sass_table.py."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from lab import disassembler

CONTROL = ((1 << 21) - 1) << 105
#: Control bits that every instruction may have: stall 1, no yield, no barrier, no wait, no reuse.
IDLE = (7 << 8 | 7 << 5 | 1 << 4 | 1) << 105
OPCODE = 0xFFF
GUARD = range(12, 16)
BATCH = 3000
# Registers, and not the name of a modifier or of a special register such as SR_TID.X.
TOKEN = re.compile(r"(?<![\w.])(SB|UR|UP|R|P|B)(\d+|Z|T)(?![\w])(?!_)")
FLOW = re.compile(r"(@!?U?P\d )?(BRA|BRX|BRXU|JMP|JMX|JMXU|CALL|RET|EXIT|BSSY|BSYNC|BREAK|KILL|BPT|RTT|LEPC|YIELD)\b")


class Field(NamedTuple):
    """A register field: kind (with ~ where its bits are inverted), lowest bit, bits, ``r``, ``w`` or ``x`` (both), and
    how many registers from its number on."""

    kind: str
    low: int
    bits: int
    role: str
    width: int


def none_of(kind: str, arch: str) -> int:
    """The number that stands for no register."""
    kind = kind.lstrip("~")
    if kind == "R":
        return 255
    if kind == "UR":
        return 255 if int(arch[3:]) >= 100 else 63
    return 7 if kind in ("P", "UP") else 15


def bits_of(kind: str, arch: str) -> int:
    return {"R": 8, "UR": 8 if int(arch[3:]) >= 100 else 6, "P": 3, "UP": 3, "B": 4, "SB": 3}[kind.lstrip("~")]


def tokens(text: str, arch: str) -> list[tuple[str, int]]:
    """Kind and number of each register in a text, in order."""
    return [(kind, int(number) if number.isdigit() else none_of(kind, arch)) for kind, number in TOKEN.findall(text)]


def shape(text: str) -> str:
    """A text without the numbers of registers and immediates: what forms are told apart by."""
    text = re.sub(r"^@!?U?P[0-9T]+ ", "", text)
    text = TOKEN.sub(lambda match: match[1] + "#", text).replace(".reuse", "")
    text = re.sub(r"-?(?<![\w.])(0x[0-9a-f]+|\d*\.?\d+(e[+-]?\d+)?|\+?-?(INF|QNAN|NAN|SNAN))\b", "#", text)
    return re.sub(r"[-~|!]|SR_\w+(\.\w+)?|SRZ", "", text)


def structure(text: str) -> str:
    """The order of register kinds among the operands: what two words of one layout have in common."""
    body = re.sub(r"^@!?U?P[0-9T]+ ", "", text)
    return " ".join(match[1] for match in TOKEN.finditer(body))


def fields_of(words: Sequence[int], arch: str) -> list[list[tuple[str, int]] | None]:
    """Kind and lowest bit of each register field of the words, by flipping their bits; None: not an instruction."""
    flips = list(range(12, 105))
    jobs = [word ^ (1 << bit) if bit >= 0 else word for word in words for bit in (-1, *flips)]
    said = texts(jobs, arch)
    found: list[list[tuple[str, int]] | None] = []
    for at in range(0, len(said), 1 + len(flips)):
        base, rest = said[at], said[at + 1:at + 1 + len(flips)]
        if base is None:
            found.append(None)
            continue
        votes: dict[tuple[str, int], int] = defaultdict(int)
        before = tokens(strip(base), arch)
        for bit, text in zip(flips, rest, strict=True):
            if text is None or bit in GUARD:
                continue
            after = tokens(strip(text), arch)
            changed = difference(before, after, arch)
            if changed is not None:
                kind, old, new = changed
                step = old ^ new
                if step and step & (step - 1) == 0 and (len(after) != len(before) or skeleton(base) == skeleton(text)):
                    low = bit - step.bit_length() + 1
                    held = words[at // (1 + len(flips))] >> low & (1 << bits_of(kind, arch)) - 1
                    if held == old:
                        votes[kind, low] += 1
                    elif held ^ (1 << bits_of(kind, arch)) - 1 == old:
                        votes["~" + kind, low] += 1  # encoded inverted
        found.append(sorted((kind, low) for (kind, low), count in votes.items()
                            if count >= bits_of(kind, arch) - (0 if kind[0] == "~" else 3 if kind == "SB" else 2)))
    # In a long run nvdisasm now and then leaves out a word that it knows.
    lost = [at for at, layout in enumerate(found) if layout is None]
    if lost and len(words) > 1:
        for at in lost:
            found[at] = fields_of([words[at]], arch)[0]
    return found


def difference(before: list[tuple[str, int]], after: list[tuple[str, int]], arch: str) -> tuple[str, int, int] | None:
    """The one register whose number changed, or that came up: a text leaves out some that name none."""
    if len(after) == len(before) + 1:
        for place, (kind, number) in enumerate(after):
            if after[:place] + after[place + 1:] == before:
                return kind, none_of(kind, arch), number
        return None
    if len(after) == len(before) - 1:
        swapped = difference(after, before, arch)
        return swapped and (swapped[0], swapped[2], swapped[1])
    if len(after) != len(before):
        return None
    changed = [(kind, old, new) for (kind, old), (other, new) in zip(before, after, strict=True)
               if (kind, old) != (other, new)]
    return changed[0] if len(changed) == 1 else None


def strip(text: str) -> str:
    return re.sub(r"^@!?U?P[0-9T]+ ", "", text)


def skeleton(text: str) -> str:
    """A text with every register number blanked and ``.reuse`` gone."""
    body = strip(text)
    if FLOW.match(body) or body.startswith("WARPSYNC"):
        body = re.sub(r"\b0x[0-9a-f]+", "#", body)  # a target, relative to the address
    return TOKEN.sub(lambda match: match[1] + "#", body).replace(".reuse", "")


def texts(words: Sequence[int], arch: str) -> list[str | None]:
    """`disassembler.texts` in batches."""
    found: list[str | None] = []
    for at in range(0, len(words), 60_000):
        found += disassembler.texts(words[at:at + 60_000], arch)
    return found


def put(word: int, kind: str, low: int, value: int, arch: str) -> int:
    mask = (1 << bits_of(kind, arch)) - 1
    return word & ~(mask << low) | (value ^ mask if kind[0] == "~" else value) << low


def probe(kind: str, quietly: bool) -> int:
    """The register that a field names in its probe; beside others' names, one that they are unlikely to reach."""
    return PROBE[kind.lstrip("~")] if quietly else {"R": 208, "UR": 40, "P": 5, "UP": 5}[kind.lstrip("~")]


#: What nvdisasm's life ranges leave out or get wrong: predicates that are read or written together; LDGSTS's predicate,
#: which they show as written.
ALL_PREDICATES = {"P2R": Field("P", 0, 0, "r", 7), "R2P": Field("P", 0, 0, "x", 7)}


def corrected(name: str, variant: tuple[Field, ...]) -> tuple[Field, ...]:
    """A variant with the above put right."""
    if name in ALL_PREDICATES:
        return (*(field for field in variant if field.bits), ALL_PREDICATES[name])
    if name == "LDGSTS":
        return tuple(field._replace(role="r") if field.kind == "P" else field for field in variant)
    return variant


PROBE = {"R": 64, "UR": 16, "P": 2, "UP": 2, "B": 3, "SB": 2}


def roles(jobs: Sequence[tuple[int, list[tuple[str, int]]]], arch: str) -> list[tuple[Field, ...] | None]:
    """What each word's fields do: one probe a field, in which every other field names no register.

    None where the accesses cannot be told.
    """
    found = quiet_roles(jobs, arch, quietly=True)
    missing = [at for at, answer in enumerate(found) if answer is None]
    for at, answer in zip(missing, quiet_roles([jobs[at] for at in missing], arch, quietly=False), strict=True):
        found[at] = answer  # an address must be named, for one
    return found


def quiet_roles(jobs: Sequence[tuple[int, list[tuple[str, int]]]], arch: str,
                quietly: bool) -> list[tuple[Field, ...] | None]:
    """`roles` with the other fields set to none, or as they are."""
    probes, where = [], []
    for index, (word, fields) in enumerate(jobs):
        quiet = word & ~CONTROL | IDLE
        quiet = quiet & ~(7 << 12) | 7 << 12
        quiet &= ~(1 << 15)
        for kind, low in fields if quietly else ():
            quiet = put(quiet, kind, low, none_of(kind, arch) if kind not in ("B", "SB") else 1, arch)
        for place, (kind, low) in enumerate(fields):
            if kind not in ("B", "SB"):
                probes.append(put(quiet, kind, low, probe(kind, quietly), arch))
                where.append((index, place))
        probes.append(quiet)
        where.append((index, -1))
    said = texts(probes, arch)
    good = [at for at, text in enumerate(said) if text is not None]
    seen: dict[tuple[int, int], disassembler.Access] = {}
    for at in range(0, len(good), BATCH):
        part = good[at:at + BATCH]
        answer = disassembler.accesses([probes[one] for one in part], arch)
        for place, one in enumerate(part):
            seen[where[one]] = answer.get(("k", place * 16), disassembler.Access(frozenset(), frozenset()))
    found: list[tuple[Field, ...] | None] = []
    for index, (_, fields) in enumerate(jobs):
        made = []
        ambient = seen.get((index, -1))
        for place, (kind, low) in enumerate(fields):
            if kind in ("B", "SB"):
                made.append(Field(kind, low, bits_of(kind, arch), "r", 1))
                continue
            access = seen.get((index, place))
            if access is None:
                break
            base = probe(kind, quietly)
            reads, writes = (run(base, kind.lstrip("~"), names - (beside or frozenset())) for names, beside in (
                (access.reads, ambient.reads if ambient and quietly else None),
                (access.writes, ambient.writes if ambient and quietly else None)))
            if reads and writes and reads != writes:
                made.append(Field(kind, low, bits_of(kind, arch), "r", reads))
                made.append(Field(kind, low, bits_of(kind, arch), "w", writes))
            elif reads or writes:
                made.append(Field(kind, low, bits_of(kind, arch), "x" if reads and writes else "r" if reads else "w",
                                  max(reads, writes)))
            else:
                continue  # it names a register that this variant does not use
        else:
            found.append((*made, *(implicit(ambient) if quietly else ())))
            continue
        found.append(None)
    return found


def implicit(access: disassembler.Access | None) -> list[Field]:
    """Registers that a word reads or writes without naming them, as fields of no bits whose ``low`` is the first."""
    found = []
    for names, role in ((access.reads, "r"), (access.writes, "w")) if access else ():
        for kind in ("R", "UR", "P", "UP"):
            numbers = sorted(int(name[len(kind):]) for name in names if re.fullmatch(kind + r"\d+", name))
            if numbers:
                found.append(Field(kind, numbers[0], 0, role, len(numbers)))
    return found


def run(base: int, kind: str, names: Iterable[str]) -> int:
    """How many registers from ``base`` on are among ``names``."""
    numbers = {int(name.removeprefix(kind)) for name in names if re.fullmatch(kind + r"\d+", name)}
    count = 0
    while base + count in numbers:
        count += 1
    return count
