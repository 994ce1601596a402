"""Fit the table of fixed latencies to what the compiler leaves: the smallest distance for each kind of dependence.

    python -m lab.sass_latency CUBIN... [--json src/peakgemm/sass/latencies.json]

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

#: Cycles from one instruction to the next in the same pipe.
PIPES = 4


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


def careful(name: str, least: dict[str, int]) -> int:
    """The cycles that a row of the table demands: less than the smallest distance where it is above the pipes' four.

    A producer of long latency is seldom pressed, so it is granted two cycles. The distance of a guard and that of an
    addend are those of any producer.
    """
    kind, dependence = name.split()[-2:] if len(name.split()) == 2 else name.split()[1:3]
    if dependence in ("guard", "addend"):
        return least[f"{kind} {dependence}"]
    return min(least[name], PIPES) if least[name] <= PIPES + 2 else least[name] - 2



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
    cycles = {name: careful(name, least) for name in sorted(least)
              if len(name.split()) == 2 or count[name] >= latency.ENOUGH}
    rows = ",\n".join(f"{json.dumps(name)}: {least}" for name, least in cycles.items())
    args.json.write_text(f'{{"cubins": {used},\n"observations": {sum(count.values())},\n"stalls": '
                         f'{json.dumps(dict(sorted(stalls.items())))},\n"cycles": {{\n{rows}\n}}}}\n')
    print(f"{args.json}: {len(cycles)} combinations from {used} cubins")


if __name__ == "__main__":
    main()
