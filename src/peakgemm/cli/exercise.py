"""``peakgemm exercise``: a kernel with a hole, and what is still wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import InvalidValue
from ..kernels.registry import rungs
from ..tools.exercise import EXERCISES, check, exercise
from .console import out


def command(
    rung: Annotated[str | None, typer.Argument(help="A rung (04, padded_tile); none lists the exercises.")] = None,
    file: Annotated[Path | None, typer.Argument(help="The kernel.  [exercise_NN.cu]")] = None,
    check_it: Annotated[bool, typer.Option("--check", help="Run the file in the simulator; 1 while a goal is "
                                                           "missed.")] = False,
) -> None:
    """Learn a rung by writing it: a file with a hole and a goal, checked without a GPU."""
    if rung is None:
        for one in EXERCISES.values():
            out.print(f"{one.goal.label}: {one.goal.idea}")
        return
    chosen = rungs(rung)
    if len(chosen) != 1:
        raise InvalidValue(f"exercise takes one rung, not the {len(chosen)} of {rung!r}")
    one = exercise(chosen[0].number)
    path = file or Path(f"{one.name}.cu")
    again = f"peakgemm exercise {one.goal.number:02}" + f" {path}" * (file is not None)
    if not check_it:
        if path.exists():
            raise InvalidValue(f"{path} is there already; check it with: {again} --check")
        path.write_text(one.text(), encoding="utf-8")
        out.print(f"{one.task}\n\n{path} written. Edit it, then: {again} --check", soft_wrap=True)
        return
    if not path.is_file():
        raise InvalidValue(f"{path} is not there; write it with: {again}")
    missed = 0
    for finding in check(one, path):
        missed += not finding.met
        out.print(f"{'met' if finding.met else 'MISSED':<7}{finding.goal}: {finding.said}", soft_wrap=True)
    out.print("\nDone." if not missed else f"\n{missed} goal{'s' * (missed != 1)} missed.")
    if missed:
        raise typer.Exit(1)
