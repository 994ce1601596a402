"""``peakgemm limits``: what limits a kernel and how fast it can be, without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..kernels.registry import rungs
from ..tools.bench import records
from ..tools.inspect.files import from_file
from ..tools.limits.launches import Launch, of_file, of_rung
from ..tools.limits.limits import limits
from ..tools.limits.page import page
from . import parse
from .console import number, out, table, waiting
from .measuring import keep
from .options import OF_KERNELS, Arguments, Block, Grid, Includes, Macros, Shared
from .own import own_launch

_WIDTH = 40  # of a bar


def command(
    kernel: Annotated[str, typer.Argument(help="A rung (12, warp_tile), a .cu or a .ptx file.")],
    size: Annotated[str | None, typer.Option(help="Square N of a rung [4096], or of a file whose launch has sizes "
                                            "in variables.")] = None,
    shape: Annotated[str | None, typer.Option(help="For a rung: MxNxK.")] = None,
    gpu: Annotated[str, typer.Option(help="The GPU whose latencies count.")] = "h100",
    compare: Annotated[str | None, typer.Option(help="Another rung, beside the first.")] = None,
    entry: Annotated[str, typer.Option("--entry", "--kernel", help="For a file: which, where there are several.")] = "",
    grid: Grid = None,
    block: Block = None,
    arg: Arguments = None,
    macro: Macros = None,
    include: Includes = None,
    shared: Shared = None,
    html: Annotated[Path | None, typer.Option(help="Write charts, and warps over time, as a page.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the figures to this file.")] = None,
) -> None:
    """Ceilings, modelled time, limiter and the next thing to try of a kernel. No GPU needed."""
    read = [one for one in (kernel, compare or "") if one.endswith(OF_KERNELS)]
    records.check_writable(json, *read)
    records.check_writable(html, *read, *([json] if json else []))

    def launch(what: str) -> Launch:
        if not what.endswith(OF_KERNELS):
            chosen, wanted = rungs(what), parse.shapes(size, shape, 4096)
            return of_rung(chosen[0], wanted[0], "sm_90")
        defined = parse.macros(macro or [])
        own = own_launch(Path(what), entry, grid, block, arg or [], shared, defined, include or [], size, fill="zeros")
        if own.said:
            out.print(own.said, style="dim", soft_wrap=True)
        subject = from_file(Path(what), "sm_90", own.entry or "", defined, include or [])
        return of_file(subject, own.grid, own.block, own.args, own.shared)

    results = []
    for what in (kernel, *([compare] if compare else [])):
        with waiting(f"following {what}"):
            results.append(limits(launch(what), gpu, timeline=html is not None))
    for result in results:
        _chart(result)
    if len(results) > 1:
        _compare(*results)
    if html is not None:
        html.write_text(page(results), encoding="utf-8")
        out.print(f"Page written to {html}", soft_wrap=True)
        for result in results:
            del result["timeline"]
    keep(json, records.record(None, "sm_90", [{"found": results}]), "Figures written")


def _chart(one: dict[str, Any]) -> None:
    out.print(f"{one['label']} on {one['gpu']}", style="bold", soft_wrap=True)
    speed = f"{one['tflops']:.1f} TFLOPS, " if one["flops"] else ""
    out.print(f"  {speed}{one['ms']:.3f} ms by the model. How much of that time each resource is busy:\n")
    for name, busy in one["busy"].items():
        alone = f"  {one['tflops'] / busy:7.1f} TFLOPS if it alone counted" if one["flops"] else ""
        out.print(f"  {name:14}{100 * busy:5.0f} %  {'█' * round(_WIDTH * min(busy, 1)):{_WIDTH}}{alone}",
                  soft_wrap=True)
    out.print(f"\n  {one['turn_cycles']:,.0f} cycles a turn of the main loop; {one['blocks']:,} blocks, "
              f"{one['blocks_per_sm']} an SM by {one['limited_by']}: {one['waves']:.2f} waves.", soft_wrap=True)
    out.print("  Warps: " + ", ".join(f"{name} {100 * share:.0f} %" for name, share in list(one["stalls"].items())[:6]
                                     ), soft_wrap=True)
    out.print(f"  Limited by: {one['limiter']}. {one['next']}.", style="bold", soft_wrap=True)
    for said in one["widened"]:
        out.print(f"  {said}.", soft_wrap=True)
    if one["guessed"]:
        out.print(f"  What is loaded was taken to be zero, and {one['guessed'][0]} depends on it.", soft_wrap=True)
    if not one["measured_latencies"]:
        out.print("  Latencies are published figures and guesses: see docs/limits.md.", style="dim", soft_wrap=True)
    out.print()


def _compare(first: dict[str, Any], second: dict[str, Any]) -> None:
    rows = [["modelled ms", number(first["ms"], 3), number(second["ms"], 3)],
            ["modelled TFLOPS", number(first["tflops"]), number(second["tflops"])],
            ["limited by", first["limiter"], second["limiter"]],
            *([f"{name}, % busy", *(number(100 * one["busy"].get(name, 0.0)) for one in (first, second))]
              for name in {**first["busy"], **second["busy"]}),
            *([f"{name}, % of warps' time", *(number(100 * one["stalls"].get(name, 0.0)) for one in (first, second))]
              for name in {**first["stalls"], **second["stalls"]})]
    table("", [("", "left"), (first["label"], "right"), (second["label"], "right")], rows)
