"""``peakgemm verify``: a GPU held to the bits of ``reproducible=True``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

from .. import api
from ..runtime import device
from ..tools.accuracy import reproducible
from ..tools.accuracy.arrays import Numpy, Torch
from ..tools.bench import records
from . import console, parse
from .console import out
from .measuring import keep


def command(
    products: Annotated[int, typer.Option(min=1, help="To draw.")] = 300,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws.")] = 0,
    host: Annotated[bool, typer.Option("--host", help="NumPy arrays on the CPU, also where there is a GPU.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the record to this file.")] = None,
) -> None:
    """Hold reproducible products to their promise: rows and elements alone, in other batches and layouts, beside NaN,
    and replayed on the CPU must have the same bits. Exits with 1 where one has not."""
    records.check_writable(json)
    gpu = None if host else device.require()
    arrays = Numpy() if gpu is None else Torch("cuda")
    cases = reproducible.draw(products, seed)
    started = perf_counter()
    compiled = reproducible.compile_ahead(cases, gpu) if gpu is not None else 0
    broken = []
    gemm = partial(api.gemm, reproducible=True) if gpu is not None else api.replay
    with console.progress("verifying", len(cases)) as step:
        for case in cases:
            broken += [{"product": str(case), "what": what} for what in reproducible.check(case, gemm, arrays)]
            step(str(case))
    place = "the CPU" if gpu is None else gpu.name
    for one in broken[:20]:
        out.print(f"{one['product']}: {one['what']}", soft_wrap=True)
    out.print(f"{len(cases)} products on {place}: {len(broken)} broken promises, {compiled} kernels compiled ahead, "
              f"{perf_counter() - started:.0f} s")
    summary = {"products": len(cases), "seed": seed, "broken": broken}
    keep(json, records.record(gpu, parse.target(None, gpu), [{"verified": summary}]))
    if broken:
        raise typer.Exit(1)
