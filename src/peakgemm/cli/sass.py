"""``peakgemm sass``: cubins checked and patched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ..errors import InvalidValue
from ..sass import patch
from ..sass.arrivals import early
from ..sass.elf import Cubin
from ..sass.hazards import check_cubin
from ..sass.program import Program
from ..tools.bench import records
from . import sass_optimize
from .examples import epilog

app = typer.Typer(no_args_is_help=True, help="Check, patch and tune the machine code of cubins.")
app.command("optimize", epilog=epilog("sass optimize"))(sass_optimize.command)


@app.callback()
def _group() -> None:
    """Check, patch and tune the machine code of cubins."""


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidValue(f"{path} cannot be read: {error.strerror}") from None


@app.command("check", epilog=epilog("sass check"))
def check_command(
    file: Annotated[Path, typer.Argument(help="A cubin.")],
    against: Annotated[Path | None, typer.Option(help="The cubin it was made from, to compute the same.")] = None,
    arrivals: Annotated[bool, typer.Option("--arrivals", help="Loads from shared memory still under way when a warp "
                                           "arrives at an mbarrier, too.")] = False,
    arch: Annotated[str | None, typer.Option(help="sm_NN, refused where the cubin is for another.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The hazards as JSON.")] = False,
) -> None:
    """Audit the control bits of a cubin for sm_90; exit code 1 where a dependence is not covered."""
    cubin = Cubin.read(_read(file))
    if arch is not None and arch.rstrip("af") != cubin.arch:
        raise InvalidValue(f"{file} is for {cubin.arch}, not for {arch}")
    hazards = check_cubin(cubin, Cubin.read(_read(against)) if against else None)
    if arrivals:
        hazards += [one for name in cubin.kernels for one in early(Program.of(cubin, name))]
    if as_json:
        fields = ("kernel", "address", "rule", "source", "register", "message")
        print(json.dumps({"file": str(file), "arch": cubin.arch, "kernels": list(cubin.kernels),
                          "hazards": [{name: getattr(one, name) for name in fields} for one in hazards]}, indent=1))
    else:
        for one in hazards:
            print(f"{one.kernel} {one.address:#06x} {one.rule}: {one.message}; issued at {one.source:#x}")
        instructions = sum(kernel.size for kernel in cubin.kernels.values()) // 16
        print(f"{file}: {len(hazards)} hazards in {instructions} instructions of {len(cubin.kernels)} kernels "
              f"({cubin.arch})")
    if hazards:
        raise typer.Exit(1)


@app.command("apply", epilog=epilog("sass apply"))
def apply_command(
    patched: Annotated[Path, typer.Argument(metavar="PATCH", help="A patch, as JSON lines.")],
    file: Annotated[Path, typer.Argument(help="The cubin that it was made for.")],
    output: Annotated[Path, typer.Option(help="Where the patched cubin goes.")],
) -> None:
    """Apply a patch to the very cubin that it was made for, and check the result; the cubin itself stays as it is."""
    if output.resolve() == file.resolve():
        raise InvalidValue(f"{output} is the cubin to be patched, which is never written to; name another file")
    records.check_writable(output, patched)
    records.write_bytes(output, patch.apply(_read(file), _read(patched).decode("utf-8", "replace")))
    print(f"{output}: patched")
