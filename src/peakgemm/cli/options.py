"""Options of the commands that take a kernel of the user's own, a .cu or .ptx file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..runtime.source import SUFFIXES
from ..tools.simulator.front.arguments import FORMS

OF_KERNELS = (*SUFFIXES, ".ptx")  # files that `simulate` and `explore` run

Grid = Annotated[str | None, typer.Option(help="For a file: blocks, X or XxYxZ.")]
Block = Annotated[str | None, typer.Option(help="For a file: threads, X or XxYxZ.")]
Arguments = Annotated[list[str] | None, typer.Option(help=f"For a file, one per parameter: {FORMS}.")]
Macros = Annotated[list[str] | None, typer.Option(help="For a .cu or .cuh file: NAME=INTEGER.")]
Includes = Annotated[list[Path] | None, typer.Option(help="For a .cu or .cuh file: a folder with headers.")]
Shared = Annotated[int | None, typer.Option(help="For a file: bytes of dynamic shared memory.")]
