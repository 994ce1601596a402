"""Fit the table of fixed latencies to what the compiler leaves: the smallest distance for each kind of dependence.

    python tools/sass_latency.py CUBIN... [--json src/peakgemm/sass/latencies.json]

Every second cubin (by the digest of its bytes) is fitted; the others are for `peakgemm sass check` to be tried on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections import Counter
from pathlib import Path

from peakgemm.sass import latency
from peakgemm.sass.elf import Cubin
from peakgemm.sass.encoding import UnknownInstruction, Word
from peakgemm.sass.program import Program
from peakgemm.sass.schedule import State, states, walk


def fitted(data: bytes) -> bool:
    """Whether a cubin belongs to the half that is fitted."""
    return hashlib.sha256(data).digest()[0] % 2 == 0


def observe(program: Program, least: dict[str, int], count: Counter[str], stalls: dict[str, int]) -> None:
    """Note the distances of every fixed-latency dependence of a kernel, and the stalls of its opcodes."""
    for word in program.words:
        if word.control.stall and not word.never:
            stalls[word.name] = min(stalls.get(word.name, 15), word.control.stall)

    def watch(place: int, word: Word, state: State, clock: int) -> None:
        if word.never:
            return
        for register in word.reads | word.writes:
            for before, issued in state.issued.get(register, {}).items():
                for names in latency.keys(program.words[before], word, register):
                    for name in names:
                        count[name] += 1
                        least[name] = min(least.get(name, 1 << 20), clock - issued)

    for block, state in states(program).items():
        walk(program, block, state, watch)


def in_a_pipe(name: str) -> bool:
    """Whether a row is of a producer alone, or of a consumer of fixed latency."""
    return len(name.split()) == 3 or name.split()[3] in ("fp32", "alu", "imad", "uniform", "fp64", "mma")


def careful(name: str, least: dict[str, int], count: Counter[str]) -> int:
    """The cycles that a row of the table demands: the smallest distance, or less where few observations made it.

    Another pipe costs a consumer a cycle, no more; a producer of long latency is seldom pressed, so it is granted two
    cycles. A variable-latency consumer may come as soon as any: rows of
    their own are not kept for those.
    """
    producer, kind, dependence = ([None, *name.split()] if len(name.split()) == 2 else name.split())[:3]
    overall = least[f"{kind} {dependence}"]
    if producer is None or dependence == "guard":
        return overall
    middle = least[f"{producer} {kind} {dependence}"]
    if count[name] < 20 * latency.ENOUGH:
        middle = min(middle, 4) if middle <= 6 else middle - 2
    return min(least[name], middle + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cubins", nargs="+", type=Path, help="cubins, or folders of them")
    parser.add_argument("--json", type=Path, default=latency.TABLE)
    args = parser.parse_args()
    least: dict[str, int] = {}
    count: Counter[str] = Counter()
    stalls: dict[str, int] = {}
    used = 0
    for place in args.cubins:
        for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
            data = file.read_bytes() if file.is_file() else b""
            if not data.startswith(b"\x7fELF") or not fitted(data) or (cubin := Cubin.read(data)).arch != latency.ARCH:
                continue
            used += 1
            for name in cubin.kernels:
                try:
                    observe(Program.of(cubin, name), least, count, stalls)
                except UnknownInstruction as error:
                    print(f"{file}: {error}")
    cycles = {name: careful(name, least, count) for name in sorted(least)
              if len(name.split()) == 2 or (count[name] >= latency.ENOUGH and in_a_pipe(name))}
    rows = ",\n".join(f"{json.dumps(name)}: {least}" for name, least in cycles.items())
    args.json.write_text(f'{{"cubins": {used},\n"observations": {sum(count.values())},\n"stalls": '
                         f'{json.dumps(dict(sorted(stalls.items())))},\n"cycles": {{\n{rows}\n}}}}\n')
    print(f"{args.json}: {len(cycles)} combinations from {used} cubins")


if __name__ == "__main__":
    main()
