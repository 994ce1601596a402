"""Derive where each instruction keeps its registers, and what it reads and writes, by asking nvdisasm.

    python tools/sass_table.py CUBIN... [--json src/peakgemm/sass/opcodes.json]

A specimen of every form of every opcode in the cubins is taken. Each of its bits is flipped: where the text changes in
the number of one register alone, the bit belongs to that register's field. Then each field in turn names a register and
all others none (RZ, URZ, PT), and nvdisasm's life ranges say whether it is read or written, and how many registers
from there. Bits whose flip changes that select the variant. At the end every instruction of the cubins is decoded by
the new table and compared with the life ranges that nvdisasm prints for the whole cubin.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from peakgemm.cli.console import progress
from peakgemm.sass import disassembler
from peakgemm.sass.elf import Cubin

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
    text = re.sub(r"-?\b(0x[0-9a-f]+|\d*\.?\d+(e[+-]?\d+)?|\+?-?(INF|QNAN|NAN|SNAN))\b", "#", text)
    return re.sub(r"[-~|!]|SR_\w+(\.\w+)?|SRZ", "", text)


def structure(text: str) -> str:
    """The order of register kinds among the operands: what two words of one layout have in common."""
    body = re.sub(r"^@!?U?P[0-9T]+ ", "", text)
    return " ".join(match[1] for match in TOKEN.finditer(body))


def fields_of(words: Sequence[int], arch: str) -> list[list[tuple[str, int]] | None]:
    """Kind and lowest bit of each register field of the words, by flipping their bits; None: not an instruction."""
    flips = [bit for bit in range(12, 105)]
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


def specimens(words: Iterable[int], arch: str) -> list[tuple[int, str]]:
    """A word and its text for each form of each opcode: those that name the most registers."""
    kept: dict[tuple[int, int], list[int]] = defaultdict(list)
    for word in words:
        group = kept[word & OPCODE, word >> 72 & ((1 << 33) - 1)]
        if len(group) < 3:
            group.append(word)
    flat = [word for group in kept.values() for word in group]
    best: dict[tuple[int, str], tuple[int, int, str]] = {}
    for word, text in zip(flat, texts(flat, arch), strict=True):
        if text is None:
            continue
        key = word & OPCODE, shape(text)
        named = sum(number != none_of(kind, arch) for kind, number in tokens(text, arch))
        if key not in best or named > best[key][0]:
            best[key] = named, word, text
    return [(word, text) for _, word, text in best.values()]


Variant = tuple[Field, ...]


def derive(words: set[int], arch: str) -> tuple[dict[str, dict[str, object]], list[str]]:
    """The table of one architecture, and what it leaves open."""
    trouble: list[str] = []
    chosen = specimens(words, arch)
    layouts = fields_of([word for word, _ in chosen], arch)
    by_opcode: dict[int, list[tuple[int, str, list[tuple[str, int]]]]] = defaultdict(list)
    for (word, text), layout in zip(chosen, layouts, strict=True):
        if layout is not None:
            by_opcode[word & OPCODE].append((word, text, layout))
    for rows in by_opcode.values():
        rows[:] = [(word, text, unprinted(text, widen(word, layout, rows, arch), arch)) for word, text, layout in rows]
    # Neighbours: one other bit flipped, with the same layout of operands.
    jobs: list[tuple[int, list[tuple[str, int]]]] = []
    marks: list[tuple[int, int, int]] = []  # opcode, index of the specimen, flipped bit or -1
    structural: dict[int, set[int]] = defaultdict(set)
    flips = []
    # Sizes sit above the operands; only a tensor instruction of sm_90 has its shape among them.
    first = 16 if arch == "sm_90" else 72
    for opcode, rows in by_opcode.items():
        for index, (word, _text, layout) in enumerate(rows):
            taken = {bit for kind, low in layout for bit in range(low, low + bits_of(kind, arch))}
            jobs.append((word, layout))
            marks.append((opcode, index, -1))
            flips += [(opcode, index, bit) for bit in range(first, 105) if bit not in taken]
    said = texts([by_opcode[opcode][index][0] ^ (1 << bit) for opcode, index, bit in flips], arch)
    for (opcode, index, bit), text in zip(flips, said, strict=True):
        if text is None:
            continue
        word, base, layout = by_opcode[opcode][index]
        if structure(text) == structure(base):
            jobs.append((word ^ (1 << bit), layout))
            marks.append((opcode, index, bit))
        else:
            structural[opcode].add(bit)
    plain = [at for at, (opcode, index, _) in enumerate(marks) if not FLOW.match(by_opcode[opcode][index][1])]
    answers: dict[int, Variant | None] = dict(zip(plain, roles([jobs[at] for at in plain], arch), strict=True))
    for at, (opcode, index, _) in enumerate(marks):
        if at not in answers:  # control flow: it reads what it names
            answers[at] = flow(by_opcode[opcode][index][1], jobs[at][1], arch)
    table: dict[str, dict[str, object]] = {}
    for opcode, rows in by_opcode.items():
        mine = [(jobs[at][0], answers[at], mark) for at, mark in enumerate(marks) if mark[0] == opcode]
        own = {index: answer for _, answer, (_, index, bit) in mine if bit < 0}
        select = set(structural[opcode])
        select |= {bit for _, answer, (_, index, bit) in mine if bit >= 0 and answer != own[index]}
        select |= telling([(word, answer) for word, answer, (_, _, bit) in mine if answer is not None and bit < 0],
                          select, arch)
        variants: dict[int, Variant] = {}
        chosen_bits = sorted(select)
        for word, answer, (_, index, bit) in mine:
            if bit >= 0:
                continue
            if answer is None:
                trouble.append(f"{arch} {opcode:#05x} {rows[index][1]}: accesses unknown")
            elif variants.setdefault(value := picked(word, chosen_bits), answer) != answer:
                trouble.append(f"{arch} {opcode:#05x} {rows[index][1]}: two answers: {variants[value]} {answer}")
        guessed: dict[int, set[Variant]] = defaultdict(set)
        for word, answer, (_, _, bit) in mine:
            if bit >= 0 and answer is not None and (value := picked(word, chosen_bits)) not in variants:
                guessed[value].add(answer)
        # Where flips of different words disagree, another bit matters: such a variant stays unknown until it is met.
        variants |= {value: answers.pop() for value, answers in guessed.items() if len(answers) == 1}
        guard = "UP" if uniform_guard(rows[0][0], arch) else "P"
        name = strip(rows[0][1]).partition(" ")[0].partition(".")[0]
        table[f"{opcode:03x}"] = {
            "name": name, "guard": guard,
            **shrink(chosen_bits, {value: corrected(name, variant) for value, variant in variants.items()})}
    return table, trouble


def widen(word: int, layout: list[tuple[str, int]], rows: list[tuple[int, str, list[tuple[str, int]]]],
          arch: str) -> list[tuple[str, int]]:
    """A layout with the fields of its opcode's other forms that name no register here: the text leaves those out."""
    found = list(layout)
    for kind, low in dict.fromkeys(field for _, _, other in rows for field in other):
        bits = bits_of(kind, arch)
        free = all(low + bits <= start or start + bits_of(other, arch) <= low for other, start in found)
        if free and kind not in ("B", "SB") and put(word, kind, low, none_of(kind, arch), arch) == word:
            found.append((kind, low))
    return sorted(found)


def unprinted(text: str, layout: list[tuple[str, int]], arch: str) -> list[tuple[str, int]]:
    """A layout with where a memory instruction may keep the descriptor that sm_80 to sm_89 read but do not print.

    `roles` keeps what the life ranges confirm.
    """
    found = list(layout)
    if arch in ("sm_80", "sm_86", "sm_89") and re.match(r"LD[GS]?|ST[G]?|ATOM|RED", strip(text)):
        for low in (32, 64):
            if all(low + 6 <= start or start + bits_of(kind, arch) <= low for kind, start in found):
                found.append(("UR", low))
    return sorted(found)


def telling(rows: list[tuple[int, Variant]], select: set[int], arch: str) -> set[int]:
    """Bits to add to ``select`` so that no two words of one value differ in what they do."""
    extra: set[int] = set()
    while True:
        seen: dict[int, tuple[int, Variant]] = {}
        for word, answer in rows:
            value = picked(word, sorted(select | extra))
            first, known = seen.setdefault(value, (word, answer))
            if known == answer:
                continue
            taken = {bit for field in (*known, *answer) for bit in range(field.low, field.low + field.bits)}
            free = [bit for bit in (*range(72, 105), *range(16, 72)) if (first ^ word) >> bit & 1 and bit not in taken]
            if not free:
                return extra
            extra.add(free[0])
            break
        else:
            return extra


def flow(text: str, layout: list[tuple[str, int]], arch: str) -> Variant:
    """Roles in control flow: addresses are register pairs, BSSY and BMOV write a barrier register."""
    base = strip(text).partition(" ")[0].partition(".")[0]
    made = []
    for kind, low in layout:
        role = {"BSSY": "w", "BREAK": "x"}.get(base, "r") if kind == "B" else "w" if base == "LEPC" else "r"
        made.append(Field(kind, low, bits_of(kind, arch), role, 2 if kind in ("R", "UR") else 1))
    return tuple(made)


_guards: dict[tuple[int, str], bool] = {}


def uniform_guard(word: int, arch: str) -> bool:
    key = word & OPCODE, arch
    if key not in _guards:
        text = disassembler.texts([word & ~(15 << 12) | 2 << 12], arch)[0]
        _guards[key] = bool(text and text.startswith("@UP"))
    return _guards[key]


def picked(word: int, bits: Sequence[int]) -> int:
    """The bits of a word, the first of ``bits`` the lowest."""
    return sum((word >> bit & 1) << place for place, bit in enumerate(bits))


def shrink(bits: list[int], variants: dict[int, Variant]) -> dict[str, object]:
    """Select bits and variants without the bits that no two variants need."""
    for bit in sorted(bits, reverse=True):
        place = bits.index(bit)
        smaller: dict[int, Variant] = {}
        for value, variant in variants.items():
            without = value & ((1 << place) - 1) | value >> place + 1 << place
            if smaller.setdefault(without, variant) != variant:
                break
        else:
            bits, variants = [one for one in bits if one != bit], smaller
    return {"select": bits, "variants": {str(value): [list(field) for field in variant]
                                         for value, variant in sorted(variants.items())}}


def write(path: Path, tables: dict[str, dict[str, dict[str, object]]]) -> None:
    """Put the tables into the file, beside those of other architectures; what several share is there once."""
    if path.exists():
        known = json.loads(path.read_text())
        kept = {arch: {code: known["entries"][place] for code, place in codes.items()}
                for arch, codes in known["architectures"].items()}
        tables = kept | tables
    entries: dict[str, int] = {}
    places = {arch: {code: entries.setdefault(json.dumps(entry), len(entries)) for code, entry in sorted(table.items())}
              for arch, table in sorted(tables.items(), key=lambda item: int(item[0][3:]))}
    rows = ",\n".join(entries)
    path.write_text(f'{{"architectures":\n{json.dumps(places)},\n"entries": [\n{rows}\n]}}\n')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cubins", nargs="+", type=Path, help="cubins, or folders of them")
    parser.add_argument("--json", type=Path, required=True, help="where the table goes")
    parser.add_argument("--arch", help="only this one")
    args = parser.parse_args()
    words: dict[str, set[int]] = defaultdict(set)
    files = [file for place in args.cubins for file in (sorted(place.rglob("*")) if place.is_dir() else [place])]
    for file in files:
        data = file.read_bytes() if file.is_file() else b""
        if data.startswith(b"\x7fELF"):
            cubin = Cubin.read(data)
            for name in cubin.kernels:
                words[cubin.arch].update(word & ~CONTROL | IDLE for word in cubin.words(name))
    tables = {}
    with progress("architectures", len(words)) as done:
        for arch in sorted(words, key=lambda name: int(name[3:])):
            if args.arch in (None, arch):
                tables[arch], trouble = derive(words[arch], arch)
                print(f"{arch}: {len(tables[arch])} opcodes of {len(words[arch])} different words")
                print("\n".join(trouble))
            done(arch)
    write(args.json, tables)


if __name__ == "__main__":
    main()
