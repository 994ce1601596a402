"""Tables of 100 columns and progress bars, on rich."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.status import Status
from rich.table import Table
from rich.text import Text

from ..runtime.compile import quietly
from ..tools.bench.columns import Column

# A terminal says its own width; a pipe or a log gets the 100 columns that the tables are made for.
# Names and messages are printed as they are: brackets in them are no markup.
out = Console(width=None if sys.stdout.isatty() else int(os.environ.get("COLUMNS", "100")), highlight=False,
              markup=False)
err = Console(stderr=True, highlight=False, markup=False)


@contextmanager
def bars() -> Iterator[Any]:
    """Progress bars on stderr, none where that is no terminal: yields what starts one of so many steps, and gives a
    function that takes the step's name and advances by one. Compilations do not announce themselves meanwhile."""
    with quietly(), Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                             TimeRemainingColumn(), console=err, transient=True, disable=not err.is_terminal) as bar:

        def start(what: str, total: int) -> Callable[[str], None]:
            task = bar.add_task(what, total=total)
            return lambda step: bar.update(task, advance=1, description=step)
        yield start


@contextmanager
def progress(what: str, total: int) -> Iterator[Any]:
    """One such bar."""
    with bars() as start:
        yield start(what, total)


def waiting(what: str) -> Status:
    """A spinner on stderr until the block ends; nothing where stderr is no terminal."""
    return err.status(escape(what))


def table(title: str, columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[str | Text]], caption: str = "",
          wrap: Container[int] = ()) -> None:
    """Print rows under ``(header, justification)`` columns, and a caption below them; ``wrap``: the places of columns
    whose long cells are broken into lines."""
    grid = Table(title=title or None, title_justify="left", title_style="italic", box=None, pad_edge=False,
                 padding=(0, 2, 0, 0), header_style="bold", show_header=any(header for header, _ in columns))
    for place, (header, justify) in enumerate(columns):
        grid.add_column(header, justify=justify, no_wrap=place not in wrap,  # type: ignore[arg-type]
                        overflow="fold" if place in wrap else "ellipsis")
    for row in rows:
        grid.add_row(*row)
    out.print(grid)
    if caption:
        out.print(caption, style="dim")


def show(title: str, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], caption: str = "") -> None:
    """`table` of a record's rows."""
    table(title, [(column.short or column.header, "left" if column.digits is None else "right") for column in columns],
          [[column.cell(row)[0] for column in columns] for row in rows], caption)


def number(value: float | None, digits: int = 1) -> str:
    """A figure, or a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"
