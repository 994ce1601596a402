"""``peakgemm run``: a program as it is, with its FP32 products by peakgemm."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..calls.request import PRECISIONS
from ..run import launch

SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": ["-h", "--help"]}


def command(
    words: Annotated[list[str] | None, typer.Argument(metavar="PROGRAM.py ARGS... | -m MODULE ARGS...",
                                                      help="What Python is given.")] = None,
    precision: Annotated[str, typer.Option(help=f"One of {', '.join(PRECISIONS)}.")] = "ieee",
    linalg: Annotated[bool, typer.Option("--linalg", help="Reroute linear algebra, too.")] = False,
    check: Annotated[str, typer.Option(metavar="N", help="Compare every N-th product with the library's own.")] = "0",
    certify: Annotated[float, typer.Option(metavar="SHARE", help="Certify such a share of torch's products.")] = 0.0,
    json: Annotated[Path | None, typer.Option(help="Write what ran where to this file.")] = None,
    module: Annotated[str | None, typer.Option("-m", metavar="MODULE", help="Run a module, as python -m does.")] = None,
) -> None:
    """Run a Python program unchanged; FP32 products of torch, JAX and CuPy on the GPU are peakgemm's."""
    launch.main(sys.argv[2:])
