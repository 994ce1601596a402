"""``peakgemm inspect``: what can be known of a kernel without running it.

``peakgemm inspect 14`` is ``peakgemm inspect show 14``: a first word that is no command of the group is a kernel.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ..runtime.architectures import ARCHITECTURES, architecture
from ..tools.bench import records
from ..tools.bench.occupancy import occupancy
from . import inspect_map, inspect_show
from .console import table
from .examples import epilog
from .measuring import keep_found

_DEFAULT = "show"


class _DefaultsToShow(TyperGroup):
    """A group that hands what it does not know to its command `show`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the command's name in where it is left out."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [_DEFAULT, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_DefaultsToShow, no_args_is_help=True,
                  help="A kernel, compiled: its resources, its main loop in SASS and PTX, what its registers cost.")
app.command(_DEFAULT, epilog=epilog("inspect show"))(inspect_show.command)
app.command("map", epilog=epilog("inspect map"))(inspect_map.command)


@app.callback()
def _group() -> None:
    """A kernel, compiled: its resources, its main loop in SASS and PTX, what its registers cost."""


@app.command("occupancy", epilog=epilog("inspect occupancy"))
def occupancy_command(
    threads: Annotated[int, typer.Option(help="Threads per block.")],
    registers: Annotated[int, typer.Option(help="Registers per thread.")],
    shared: Annotated[int, typer.Option(help="Bytes of shared memory per block.")] = 0,
    arch: Annotated[str | None, typer.Option(help="sm_NN.  [all]")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the figures to this file.")] = None,
) -> None:
    """Blocks and warps that fit on one SM, and what limits them."""
    records.check_writable(json)
    found: list[dict[str, Any]] = []
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
            found.append({"arch": limits.name, "blocks_per_sm": 0, "warps_per_sm": 0, "limited_by": str(error)})
            continue
        found.append({"arch": limits.name, "blocks_per_sm": fit.blocks_per_sm, "warps_per_sm": fit.warps_per_sm,
                      "occupancy": fit.fraction, "limited_by": fit.limited_by, "limits": dict(fit.limits)})
        rows.append([limits.name, str(fit.blocks_per_sm), str(fit.warps_per_sm), f"{100 * fit.fraction:.0f}",
                     fit.limited_by, ", ".join(f"{name} {blocks}" for name, blocks in fit.limits.items())])
    table(f"{threads} threads, {registers} registers, {shared} bytes shared", [
        ("arch", "left"), ("blocks/SM", "right"), ("warps", "right"), ("%", "right"), ("limited by", "left"),
        ("blocks that each allows", "left")], rows, "\n".join(reasons))
    keep_found(json, found, arch or "sm_90")
