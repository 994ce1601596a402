"""``peakgemm multiply``: a product of matrices in .npy files."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..calls.host.files import multiply_files, outputs
from ..calls.host.multi_gpu import VARIABLE
from ..calls.request import PRECISIONS
from ..tools.bench import records
from . import parse
from .console import err, out
from .measuring import keep_found

_EVERY_S = 10.0  # a line, where there is no terminal for a bar


def command(
    a: Annotated[Path, typer.Argument(help="A: a float32 matrix in a .npy file.")],
    b: Annotated[Path, typer.Argument(help="B, likewise.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="C: the .npy file to write.")],
    c: Annotated[Path | None, typer.Option("--c", help="What --beta scales: a matrix or a row in a .npy file.")] = None,
    alpha: Annotated[float, typer.Option(parser=parse.scale, metavar="<float>", help="Scales A B.")] = 1.0,
    beta: Annotated[float | None, typer.Option(parser=parse.scale, metavar="<float>",
                                               help="Scales c.  [1 with --c]")] = None,
    trans_a: Annotated[bool, typer.Option("--trans-a", help="A lies as (K, M).")] = False,
    trans_b: Annotated[bool, typer.Option("--trans-b", help="B lies as (N, K).")] = False,
    precision: Annotated[str, typer.Option(help=f"One of {', '.join(PRECISIONS)}.")] = "ieee",
    devices: Annotated[str | None, typer.Option(envvar=VARIABLE, help="all, or indices: 0,1.  [the first GPU]")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an output that is there.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write what was done to this file.")] = None,
) -> None:
    """C = alpha A B + beta c of matrices that need not fit in memory; a run that was killed is resumed."""
    records.check_writable(json, a, b, c, *outputs(output))
    with Progress(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"),
                  TimeElapsedColumn(), TimeRemainingColumn(), console=err, transient=True,
                  disable=not err.is_terminal) as bar:
        task = bar.add_task(f"{output.name}", total=None)
        start = reported = monotonic()
        resumed: int | None = None  # elements that were finished when the first report came

        def progress(done: int, total: int) -> None:
            nonlocal reported, resumed
            bar.update(task, completed=done, total=total)
            if resumed is None:
                resumed = done
            elif not err.is_terminal and monotonic() - reported > _EVERY_S:
                reported = monotonic()
                left = (reported - start) * (total - done) / (done - resumed)
                err.print(f"{100 * done / total:.0f} % of {output.name}, about {left:.0f} s left")

        done = multiply_files(a, b, output, c=c, alpha=alpha, beta=beta, trans_a=trans_a, trans_b=trans_b,
                              precision=precision, devices=devices, overwrite=overwrite, progress=progress)
    m, n = done.shape
    earlier = f", {done.found} more were there" if done.found else ""
    out.print(f"{done.path}: {m} x {n} x {done.inner} in {done.seconds:.1f} s on {done.where}; {done.computed} "
              f"tiles computed{earlier}", soft_wrap=True)
    keep_found(json, [{"name": "product", "shape": [m, n, done.inner], "precision": precision, "where": done.where,
                       "seconds": done.seconds, "computed": done.computed, "found": done.found}])
