"""``peakgemm exercise``: a kernel with a hole, and what is still wrong with it."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
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
    assignment = exercise(chosen[0].number)
    path = file or Path(f"{assignment.name}.cu")
    again = f"peakgemm exercise {assignment.goal.number:02}" + f" {quote(str(path))}" * (file is not None)
    if not check_it:
        if path.exists():
            raise InvalidValue(f"{path} is there already; check it with: {again} --check, or delete it to begin again")
        try:
            path.write_text(assignment.text(), encoding="utf-8")
        except OSError as error:
            raise InvalidValue(f"cannot write {path} ({error.strerror}); name a file in a folder that exists") from None
        out.print(f"{assignment.task}\n\n{path} written. Edit it, then: {again} --check", soft_wrap=True)
        return
    if not path.is_file():
        raise InvalidValue(f"{path} is not there; write it with: {again}")
    missed = 0
    for finding in check(assignment, path):
        missed += not finding.met
        out.print(f"{'met' if finding.met else 'MISSED':<7}{finding.goal}: {finding.said}", soft_wrap=True)
    if not missed:
        following = assignment.goal.number + 1
        hint = f" Next: peakgemm exercise {following:02}" if following in EXERCISES else ""
        out.print(f"\nDone. Compare with {assignment.goal.path}.{hint}", soft_wrap=True)
        return
    out.print(f"\n{missed} goal{'s' * (missed != 1)} missed.")
    raise typer.Exit(1)
