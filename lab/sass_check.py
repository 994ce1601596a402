"""What `peakgemm sass check` says of compiler output for sm_90 and of seeded faults: results/sm_90/sass-check.json.

    python -m lab.sass_check --json results/sm_90/sass-check.json [CUBIN...]

Compiler output: every rung; every kernel that a wheel brings; the rungs again with other options of the compiler; and
the cubins, or folders of cubins, that are named (of other compilers: the record says how many). Each is decoded,
encoded and compared, then checked. Then 1,000 faults are drawn.
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from lab.cubins import wanted
from peakgemm.cli.console import progress
from peakgemm.kernels.registry import LADDER, Kernel, rung
from peakgemm.problem import Problem
from peakgemm.runtime.compile import in_parallel
from peakgemm.runtime.nvrtc import nvrtc_version
from peakgemm.sass.elf import Cubin
from peakgemm.sass.encoding import UnknownInstruction
from peakgemm.sass.hazards import against, check
from peakgemm.sass.latency import ARCH
from peakgemm.sass.program import Program
from tests.support.mutate import draws

FAULTS, SEED, FAULTY = 1000, 2, (2, 3, 4, 5, 6, 9)
_COMPILED = [kernel for kernel in LADDER if not kernel.patched]
OPTIONS: dict[str, dict[str, Any]] = {"--maxrregcount=64": {"max_register_count": 64},
                                      "--maxrregcount=128": {"max_register_count": 128},
                                      "--use_fast_math": {"use_fast_math": True}}


def with_options(options: dict[str, Any]) -> Iterator[bytes]:
    """Every rung compiled with other options."""
    from cuda.core import Program as Source
    from cuda.core import ProgramOptions

    for kernel in _COMPILED:
        macros = kernel.config_for(ARCH).macros()
        chosen = ProgramOptions(arch=f"{ARCH}a" if kernel.sm_90a else ARCH, std="c++17", no_cache=True,
                                define_macro=[(key, str(value)) for key, value in macros.items()], **options)
        yield bytes(Source(kernel.source, "c++", chosen).compile("cubin").code)


def audit(what: str, codes: list[bytes]) -> dict[str, Any]:
    """Identity and hazards of some cubins."""
    row: dict[str, Any] = {"cubins": what, "count": len(codes), "kernels": 0, "instructions": 0, "changed_by_encode": 0,
                           "with_hazards": 0, "hazards": [], "not_understood": []}
    with progress(what, len(codes)) as done:
        for code in codes:
            cubin = Cubin.read(code)
            for name in cubin.kernels:
                row["kernels"] += 1
                try:
                    program = Program.of(cubin, name)
                except UnknownInstruction as error:
                    row["not_understood"].append(str(error))
                    continue
                row["instructions"] += len(program.words)
                row["changed_by_encode"] += sum(word != word.with_numbers(word.numbers).with_control()
                                                for word in program.words)
                found = check(program) if cubin.arch == ARCH else []
                row["with_hazards"] += bool(found)
                row["hazards"] += [f"{cubin.digest[:16]} {one.kernel} {one.address:#x}: {one.message}"
                                   for one in found[:2]]
            done(what)
    print(f"{what}: {row['instructions']} instructions in {row['kernels']} kernels, {row['with_hazards']} with hazards"
          f", {len(row['not_understood'])} not understood", flush=True)
    return row


def _compiled(kernel: Kernel) -> bytes:
    return kernel.recipe(kernel.config_for(ARCH), Problem.contiguous(1, 1, 1), ARCH).make("cubin").code


def faults() -> dict[str, Any]:
    """The seeded faults, by kind: drawn and rejected."""
    kernels = [rung(number) for number in FAULTY]
    programs = [Program.of(Cubin.read(_compiled(kernel))) for kernel in kernels]
    drawn, rejected, by_rules = Counter[str](), Counter[str](), Counter[str]()
    lost = []
    with progress("seeded faults", FAULTS) as done:
        for original, fault in draws(programs, FAULTS, SEED):
            drawn[fault.kind] += 1
            if check(fault.program):
                rejected[fault.kind] += 1
                by_rules[fault.kind] += 1
            elif against(fault.program, original):
                rejected[fault.kind] += 1
            else:
                lost.append(f"{original.name}: {fault.kind}, {fault.what}")
            done("seeded faults")
    print(f"{sum(rejected.values())} of {FAULTS} faults rejected")
    return {"rungs": list(FAULTY), "seed": SEED, "drawn": sum(drawn.values()), "rejected": sum(rejected.values()),
            "kinds": {kind: {"drawn": drawn[kind], "rejected": rejected[kind], "without_original": by_rules[kind]}
                      for kind in sorted(drawn)}, "not_rejected": lost}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("foreign", nargs="*", type=Path, help="cubins of other compilers, or folders of them")
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    rungs = [_compiled(kernel) for kernel in _COMPILED]
    library = [made.code for made in in_parallel(lambda job: job.make("cubin"), wanted().values())]
    rows = [audit("rungs", rungs), audit("library", library)]
    rows += [audit(f"rungs, {name}", list(with_options(options))) for name, options in OPTIONS.items()]
    for place in args.foreign:
        files = sorted(place.rglob("*.cubin")) if place.is_dir() else [place]
        rows.append(audit(place.name, [file.read_bytes() for file in files]))
    record = {"command": shlex.join(["python", "-m", "lab.sass_check", "--json", str(args.json),
                                     *(place.name for place in args.foreign)]),
              "time": datetime.now(timezone.utc).isoformat(timespec="seconds"), "arch": ARCH,
              "environment": {"nvrtc": nvrtc_version(), "python": platform.python_version()},
              "compiler_output": rows, "faults": faults()}
    args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
