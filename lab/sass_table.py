"""Derive where each instruction keeps its registers, and what it reads and writes, by asking nvdisasm.

    python -m lab.sass_table CUBIN... --json src/peakgemm/sass/opcodes.json [--add]

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

from lab import disassembler
from lab.sass_probe import (
    CONTROL,
    FLOW,
    IDLE,
    OPCODE,
    Field,
    bits_of,
    corrected,
    fields_of,
    none_of,
    put,
    roles,
    shape,
    strip,
    structure,
    texts,
    tokens,
)
from peakgemm.cli.console import progress
from peakgemm.sass.elf import Cubin


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


def write(path: Path, tables: dict[str, dict[str, dict[str, object]]], add: bool) -> None:
    """Put the tables into the file, beside those of other architectures; what several share is there once. To ``add``
    leaves the opcodes that an architecture has as they are."""
    if path.exists():
        known = json.loads(path.read_text())
        kept = {arch: {code: known["entries"][place] for code, place in codes.items()}
                for arch, codes in known["architectures"].items()}
        tables = kept | {arch: table | kept.get(arch, {}) if add else table for arch, table in tables.items()}
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
    parser.add_argument("--add", action="store_true", help="opcodes that the table lacks; without it, it is made whole")
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
    write(args.json, tables, args.add)


if __name__ == "__main__":
    main()
