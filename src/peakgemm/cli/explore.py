"""``peakgemm explore``: pages that show a kernel's run lane by lane, written to disk or served on this machine."""

from __future__ import annotations

import re
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from ..errors import InvalidValue
from ..kernels.registry import LADDER, Kernel, rungs
from ..runtime.architectures import architecture
from ..runtime.source import SUFFIXES as CUDA
from ..tools.bench import records
from ..tools.explore.kernels import Launch, own_trace, rung_trace
from ..tools.explore.linked import own_sass, rung_sass
from ..tools.explore.page import write_pages
from . import parse
from .console import err, out, progress
from .options import OF_KERNELS, Arguments, Block, Grid, Includes, Macros, Shared
from .own import own_launch


def command(
    kernel: Annotated[list[str] | None, typer.Argument(help="Rungs (03, 03-05, warp_tile), .cu or .ptx files.  [all "
                                                            "rungs]")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="FILE.html, or a folder.  [explorer]")] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Serve the page on localhost until Ctrl-C.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="For --serve; 0: a free one.")] = 8000,
    shape: Annotated[str | None, typer.Option(help="For rungs: MxNxK.  [a tile or a few]")] = None,
    size: Annotated[str | None, typer.Option(help="For a file whose launch has sizes in variables: N.")] = None,
    entry: Annotated[str | None, typer.Option("--entry", "--kernel", help="For a file: the kernel, where there are "
                                              "several.")] = None,
    grid: Grid = None,
    block: Block = None,
    arg: Arguments = None,
    macro: Macros = None,
    include: Includes = None,
    shared: Shared = None,
    arch: Annotated[str, typer.Option(help="Architecture that kernels are compiled for.")] = "sm_90",
    sass: Annotated[bool, typer.Option(help="Link the main loop's SASS; without it the page is made faster.")] = True,
    max_steps: Annotated[int, typer.Option(min=1, help="For a file: stop after this many instructions.")] = 5_000_000,
    max_seconds: Annotated[float, typer.Option(help="For a file: stop after this many seconds.")] = 120.0,
) -> None:
    """Which lane loads what, where it lands, what registers hold: one page, from a simulated run. No GPU needed."""
    limits = architecture(arch)
    words = kernel or ["all"]
    files = [Path(word) for word in words if word.endswith(OF_KERNELS)]
    chosen = [one for word in words if not word.endswith(OF_KERNELS) for one in _rungs(word)]
    if not files:
        parse.only_for("files", {"--entry": entry, "--grid": grid, "--block": block, "--arg": arg, "--macro": macro,
                                 "--include": include, "--shared": shared}, "rungs")
    if shape is not None and not chosen:
        raise InvalidValue("--shape: for rungs only; a file's sizes are among its --arg")
    if output is not None and output.suffix != ".html" and output.is_file():
        raise InvalidValue(f"{output} is a file; name a folder, or a file that ends in .html")
    if output is not None and not (output.suffix != ".html" and output.is_dir()):  # one, not those above, is made
        records.check_writable(output)
    launches = []
    for file in files:
        defined = parse.macros(macro or []) if file.suffix in CUDA else {}
        folders = include or [] if file.suffix in CUDA else []
        own = own_launch(file, entry, grid, block, arg or [], shared, defined, folders, size)
        launches.append(Launch(file, own.grid, own.block, own.args, own.entry, own.shared, arch, defined, folders,
                               max_steps, max_seconds))
        if own.said:
            out.print(own.said, style="dim", soft_wrap=True)
    problem = parse.shapes(None, shape, 0)[0] if shape is not None else None
    able = [one for one in chosen if one.lacks(limits) is None]
    for one in chosen:
        if one not in able:
            err.print(f"{one.label}: left out, {one.lacks(limits)}")
    if not able and not files:
        raise InvalidValue(f"no kernel is left for {arch}; choose another --arch")
    traces: list[dict[str, Any]] = []
    with progress("exploring", len(able) + len(files)) as advance:
        for one in able:
            traces.append(rung_trace(one, arch, problem))
            if sass:
                traces[-1]["sass"] = rung_sass(one, traces[-1], arch, problem)
            advance(one.label)
        for file, launch in zip(files, launches, strict=True):
            traces.append(own_trace(launch, re.sub(r"[^\w.-]", "_", file.stem), file.name))
            if sass:
                traces[-1]["sass"] = own_sass(launch, traces[-1])
            advance(file.name)
    if serve:
        _serve(traces, output, port)
        return
    page = write_pages(output or Path("explorer"), traces)
    out.print(f"{len(traces)} kernel{'s' * (len(traces) != 1)}: page written to {page}", soft_wrap=True)
    wrong = [trace for trace in traces if trace["faults"] or trace["stopped"]]
    for trace in wrong:
        faults = len(trace["faults"])
        said = f"{faults} fault{'s' * (faults != 1)}" + (", stopped" if trace["stopped"] else "")
        err.print(f"{trace['label']}: {said}; the page says which, and where", soft_wrap=True)
    if wrong:
        raise typer.Exit(1)


def _rungs(word: str) -> tuple[Kernel, ...]:
    return LADDER if word == "all" else rungs(word)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of each request."""


def _serve(traces: list[dict[str, Any]], output: Path | None, port: int) -> None:
    """Serve the pages on localhost, from ``output`` or a folder that is gone afterwards."""
    if output is not None and output.suffix == ".html":
        raise InvalidValue(f"--serve needs a folder, {output} is a file; leave --output out")
    with TemporaryDirectory(prefix="peakgemm-explore-") as scratch:
        folder = output or Path(scratch)
        write_pages(folder, traces)
        try:
            server = ThreadingHTTPServer(("127.0.0.1", port), partial(_Quiet, directory=str(folder)))
        except OSError as error:
            raise InvalidValue(f"cannot listen on port {port} ({error.strerror}); pass another --port, or 0") from None
        with server:
            out.print(f"http://127.0.0.1:{server.server_port}/  (Ctrl-C ends it)")
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                out.print("Ended.")
