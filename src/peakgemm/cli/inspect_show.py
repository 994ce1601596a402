"""``peakgemm inspect KERNEL``: the tables, the listing, the comparison and the files of one kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from ..errors import InvalidValue
from ..runtime.source import SUFFIXES as CUDA
from ..tools.bench import records
from ..tools.inspect.files import from_file, is_file
from ..tools.inspect.listing import Listing
from ..tools.inspect.named import named
from ..tools.inspect.page import write_page
from ..tools.inspect.rows import compared, rows
from ..tools.inspect.source import SourceLines, place
from ..tools.inspect.subject import Subject, launched
from ..tools.inspect.view import View, view
from . import parse
from .console import out, table, waiting
from .measuring import keep
from .options import Includes, Macros

_LABEL_WIDTH = 22


def command(
    kernel: Annotated[str, typer.Argument(help="A rung (14, warp_tile), matmul or a kernel of the library (wide, "
                                               "fp16x3), a .cubin, .ptx or .cu file.")],
    arch: Annotated[str | None, typer.Option(help="Compile for sm_NN.  [sm_90; a file's own]")] = None,
    config: Annotated[str, typer.Option(help="For a rung or the library: a configuration's label.")] = "",
    shape: Annotated[str, typer.Option(help="For the library: what runs for MxNxK[:layout][*batch].")] = "",
    precision: Annotated[str, typer.Option(help="For matmul: as in peakgemm.matmul.")] = "ieee",
    function: Annotated[str, typer.Option("--kernel", help="For a file: which, where there are several.")] = "",
    macro: Macros = None,
    include: Includes = None,
    threads: Annotated[int | None, typer.Option(min=1, help="For a file: threads a block of its launch.")] = None,
    shared: Annotated[int | None, typer.Option(min=0, help="For a file: bytes of dynamic shared memory.")] = None,
    compare: Annotated[str | None, typer.Option(help="Another kernel or file, beside the first.")] = None,
    listing: Annotated[bool, typer.Option("--listing", help="PTX and SASS of the main loop, side by side; of "
                                           "the whole kernel where there is none.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the figures to this file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write one page with source, PTX and SASS linked.")] = None,
) -> None:
    """Resources, main loop, register reads and roofline of a compiled kernel. No GPU needed."""
    asked = [kernel, *([compare] if compare is not None else [])]
    files = [what for what in asked if is_file(what)]
    records.check_writable(json, *files, html)
    records.check_writable(html, *files)
    if (config or shape or precision != "ieee") and all(map(is_file, asked)):
        raise InvalidValue("--config, --shape and --precision are for rungs and the library, "
                           f"not for {' and '.join(asked)}")
    if (function or macro or include or threads or shared is not None) and not any(map(is_file, asked)):
        raise InvalidValue("--kernel, --macro, --include, --threads and --shared are for files, "
                           f"not for {' and '.join(asked)}")

    def look(what: str) -> View:
        if is_file(what):
            path, own = Path(what), compare is not None and what.endswith(".cubin")  # --arch may be the other's
            sources = compare is None or what.endswith(CUDA)  # and so may macros
            loaded = from_file(path, None if own else arch, function, parse.macros(macro or []) if sources else None,
                               include or [] if sources else [])
            subject = launched(loaded, threads, shared)
        else:
            subject = named(what, arch or "sm_90", config, shape, precision)
        return view(subject, with_text=listing or html is not None)

    with waiting("compiling and disassembling"):
        first = look(kernel)
        second = look(compare) if compare is not None else None
    if second is None:
        _show(first)
    else:
        _compare(first, second)
    if listing:
        for shown in (first, second):
            if shown is not None:
                _listing(shown.subject, shown.listing)
    if json is not None:
        facts = [one.facts for one in (first, second) if one is not None]
        keep(json, records.record(None, first.subject.arch, [{"inspect": facts}]), "\nFigures written")
    if html is not None:
        write_page(html, [one for one in (first, second) if one is not None])
        out.print(f"\nPage written to {html}")


def _show(one: View) -> None:
    group = ""
    out.print(one.subject.label, style="bold")
    for row in rows(one.facts):
        if row.group != group:
            group = row.group
            out.print(f"\n{group}", style="italic")
        out.print(f"  {row.name:{_LABEL_WIDTH}}{row.text}", soft_wrap=True)
    _notes(one)


def _notes(one: View) -> None:
    if one.facts["notes"]:
        out.print()
    for note in one.facts["notes"]:
        out.print(note, style="dim", soft_wrap=True)


def _compare(first: View, second: View) -> None:
    lines = list[list[str | Text]]()
    group = ""
    for pair in compared(first.facts, second.facts):
        if pair.group != group:
            group = pair.group
            lines.append([Text(group, "italic"), "", "", ""])
        style = "bold yellow" if pair.differs else ""
        lines.append([f"  {pair.name}", "*" * pair.differs, Text(pair.first, style), Text(pair.second, style)])
    heads = [("", "left"), ("", "left"), (first.subject.label, "left"), (second.subject.label, "left")]
    table("* differs", heads, lines, wrap=range(4))
    _notes(first)
    _notes(second)


def _listing(subject: Subject, listing: Listing) -> None:
    """One line an instruction; what repeats from the line above is left out."""
    out.print(f"\n{subject.label}: {listing.part}", style="bold")
    out.print(f"{'address':8} {'waits:rd:wr:y:stall':20} {'SASS':40} {'reads':8} {'live':>4}  {'PTX':44} source",
              style="bold", soft_wrap=True)
    source, before = SourceLines(subject.source), ("", "")
    for line in listing.lines:
        ptx = listing.ptx[line.ptx - 1].replace("\t", " ") if line.ptx else ""
        where = place(line.file, line.line)
        text = source.text(line.file, line.line).strip() if (ptx, where) != before else ""
        shown = Text(f"{line.address:#08x} {line.word.control!s:20} {line.text:40} ")
        shown.append(f"{line.reads:8} ", style="red" if line.extra else "")
        live = "" if line.live is None else str(line.live)
        shown.append(f"{live:>4}  {ptx if (ptx, where) != before else '':44} ")
        shown.append(f"{where if (ptx, where) != before else ''}  {text}".rstrip(), style="dim")
        out.print(shown, soft_wrap=True)
        before = (ptx, where)
    out.print("reads: the bank of each register operand a, b, c; r: from the reuse cache, .: no register, !: this\n"
              "bank made it wait. live: registers in use at the instruction.", style="dim")
