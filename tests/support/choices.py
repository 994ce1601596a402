"""What the cost models chose on the day when their numbers left the code: a profile of then, products, and the choices.

    python tests/support/choices.py     # writes the choices anew, after a formula was changed on purpose
"""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

from peakgemm.kernels.emulated.model import simplest
from peakgemm.kernels.emulated.schemes import SCHEMES
from peakgemm.kernels.profile import Machine
from peakgemm.problem import Problem
from peakgemm.selection.choose import candidates
from peakgemm.selection.machine import machine_with
from peakgemm.selection.profile_file import read
from peakgemm.tools.bench.suites import distinct, drawn_cases, suites

FOLDER = Path(__file__).parent / "fixtures" / "choices"


def gpu() -> Machine:
    return machine_with(read(FOLDER / "profile.json"), "sm_90", 132)


def products() -> dict[str, Problem]:
    """Every third case of the suites, and drawn ones."""
    cases = [*distinct(suites("all"))[::3], *islice(drawn_cases(777), 60)]
    return {case.size: case.problem()[0] for case in cases}


def chosen(problem: Problem, here: Machine) -> list[str]:
    """The models' first for FFMAs and for tensor cores: kernel, fields of its configuration, microseconds."""
    found = candidates(problem, here)[0], simplest(candidates(problem, here, SCHEMES["fp16x3"]), here)
    return [f"{kernel.name} {kernel.family.name or kernel.name} {json.dumps(config.set_fields())} {us:.4g}"
            for kernel, config, us in found]


if __name__ == "__main__":
    here = gpu()
    lines = [f" {json.dumps(name)}: {json.dumps(chosen(p, here))}" for name, p in products().items()]
    (FOLDER / "choices.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
