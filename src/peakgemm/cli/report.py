"""``peakgemm report``: records as one self-contained page, and the figures of the project's own pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..bench import records
from ..errors import InvalidValue
from ..report import load, write_page
from ..report.data import default_folder
from ..report.publish import find_checkout
from .console import err, out, waiting


def command(
    files: Annotated[list[Path] | None, typer.Argument(
        metavar="[JSON]...", help="Records that --json wrote, or folders of them.  [of results/, the fullest]")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page.")] = Path("report.html"),
    readme: Annotated[bool, typer.Option("--readme", help="In a checkout: the tables and plots of README and docs/ "
                                                          "instead, from results/.")] = False,
    check: Annotated[bool, typer.Option("--check", help="With --readme: only say what is old, and exit 1.")] = False,
) -> None:
    """Show records as one page: figures, tables, commands and conditions; no network, light and dark."""
    if readme:
        if files:
            raise InvalidValue("--readme reads results/ of the checkout, not files that are named; leave them out")
        _publish(check)
        return
    if check:
        raise InvalidValue("--check goes with --readme: add it")
    records.check_writable(output, *(files or []))
    with waiting("drawing"):
        data = load(files or [default_folder(Path.cwd())])
        size = write_page(output, data)
    for name, what in data.left_out.items():
        err.print(f"Left out: {name}: {what}, of which there is no figure", markup=False, soft_wrap=True)
    count = len(data.sources)
    out.print(f"{output}: {size / 1e6:.2f} MB, from {count} record{'s' * (count != 1)}", markup=False, soft_wrap=True)


def _publish(check: bool) -> None:
    found = find_checkout(Path.cwd()).publish(check)
    for line in found.told:
        (err if found.failed else out).print(line, markup=False, soft_wrap=True)
    if found.failed:
        raise typer.Exit(1)
