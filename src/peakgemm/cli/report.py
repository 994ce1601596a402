"""``peakgemm report``: records as one self-contained page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..tools.bench import records
from ..tools.report import load, write_page
from ..tools.report.data import default_folder
from .console import err, out, waiting


def command(
    files: Annotated[list[Path] | None, typer.Argument(
        metavar="[JSON]...", help="Records that --json wrote, or folders of them.  [of results/, the fullest]")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page.")] = Path("report.html"),
) -> None:
    """Show records as one page: figures, tables, commands and conditions; no network, light and dark."""
    records.check_writable(output, *(files or []))
    with waiting("drawing"):
        data = load(files or [default_folder(Path.cwd())])
        size = write_page(output, data)
    for name, what in data.left_out.items():
        err.print(f"Left out: {name}: no figure shows what was written by: {what}", soft_wrap=True)
    count = len(data.sources)
    out.print(f"{output}: {size / 1e6:.2f} MB, from {count} record{'s' * (count != 1)}", soft_wrap=True)
