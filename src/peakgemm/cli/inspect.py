"""``peakgemm inspect``: what can be known of a kernel without running it."""

from __future__ import annotations

from typing import Annotated

import typer

from ..inspect.occupancy import occupancy
from ..runtime.architectures import ARCHITECTURES, architecture
from .console import table

app = typer.Typer(no_args_is_help=True, help="PTX and SASS of a kernel: occupancy and more.")


@app.callback()
def _group() -> None:
    """PTX and SASS of a kernel: occupancy and more."""


@app.command("occupancy")
def occupancy_command(
    threads: Annotated[int, typer.Option(help="Threads per block.")],
    registers: Annotated[int, typer.Option(help="Registers per thread.")],
    shared: Annotated[int, typer.Option(help="Bytes of shared memory per block.")] = 0,
    arch: Annotated[str | None, typer.Option(help="sm_NN.  [all]")] = None,
) -> None:
    """Blocks and warps that fit on one SM, and what limits them."""
    chosen = [architecture(arch)] if arch else list(ARCHITECTURES.values())
    rows, reasons = [], []
    for limits in chosen:
        try:
            fit = occupancy(limits, threads, registers, shared)
        except ValueError as error:
            if arch:
                raise
            rows.append([limits.name, "0", "0", "0", "no block fits", ""])
            reasons.append(str(error).partition(";")[0])
            continue
        rows.append([limits.name, str(fit.blocks_per_sm), str(fit.warps_per_sm), f"{100 * fit.fraction:.0f}",
                     fit.limited_by, ", ".join(f"{name} {blocks}" for name, blocks in fit.limits.items())])
    table(f"{threads} threads, {registers} registers, {shared} bytes shared", [
        ("arch", "left"), ("blocks/SM", "right"), ("warps", "right"), ("%", "right"), ("limited by", "left"),
        ("blocks that each allows", "left")], rows, "\n".join(reasons))
