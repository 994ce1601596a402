"""``peakgemm cache``: compiled programs and tuning entries on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ..errors import InvalidValue
from ..kernels.recipe import Recipe
from ..problem import Problem
from ..runtime import cache, device
from ..runtime.compile import Compiled, in_parallel
from ..tools.bench import records
from . import parse
from .console import out, progress
from .examples import epilog
from .measuring import chosen_for, keep_found

app = typer.Typer(no_args_is_help=True, help="Compiled programs and tuning entries: info, clear, warm.")


@app.command(epilog=epilog("cache info"))
def info(json: Annotated[Path | None, typer.Option(help="Write what was found to this file.")] = None) -> None:
    """Where the cache lies and how large it is."""
    records.check_writable(json)
    folders = []
    for what, place, most in (("programs", cache.folder(), f" of at most {cache.MAX_BYTES / 1e6:.0f} MB"),
                              ("tuning entries", cache.tuned_folder(), "")):
        count, size = cache.usage(place)
        folders.append({"what": what, "folder": place.name, "files": count, "bytes": size})
        out.print(f"{what}: {place}: {count} files, {size / 1e6:.1f} MB{most}", soft_wrap=True)
    problem = cache.trouble(cache.folder()) if cache.folder().exists() else None
    if problem:
        out.print(f"not used: {problem}", soft_wrap=True)
    keep_found(json, folders)


@app.command(epilog=epilog("cache clear"))
def clear(tuned: Annotated[bool, typer.Option("--tuned", help="Tuning entries and profiles too.")] = False) -> None:
    """Remove every compiled kernel, and with --tuned what was tuned or fitted."""
    cache.clear(tuned)
    places = [cache.folder(), *([cache.tuned_folder()] if tuned else [])]
    out.print(f"{', '.join(map(str, places))}: cleared", soft_wrap=True)


@app.command(epilog=epilog("cache warm"))
def warm(
    arch: Annotated[str | None, typer.Option(help="Compile for sm_NN.  [the GPU's, else sm_90]")] = None,
    shape: Annotated[str | None, typer.Option(help="Only what MxNxK[,...] would run.  [what the library uses]")] = None,
) -> None:
    """Compile in parallel what the library would compile at its first calls. Needs no GPU."""
    target = parse.target(arch, device.find())
    problem = cache.trouble(cache.folder())
    if problem:
        raise InvalidValue(f"nothing would be kept: {problem}")
    jobs = _jobs(target, shape)
    with progress("compiling", len(jobs)) as done:

        def compile_one(recipe: Recipe) -> Compiled:
            compiled = recipe.make("cubin")
            done(recipe.entry)
            return compiled

        kept = in_parallel(compile_one, jobs)
    fresh = sum(compiled.remake is None for compiled in kept)
    out.print(f"{cache.folder()}: {len(kept)} kernels for {target}, {fresh} of them new", soft_wrap=True)


def _jobs(arch: str, shape: str | None) -> Sequence[Recipe]:
    """What to compile."""
    from ..kernels.library import recipes
    from ..selection.choose import choose, warm_set

    if shape is None:
        return warm_set(arch)
    sms, name = chosen_for(device.find(), arch)
    wanted = list[Recipe]()
    for m, n, k in parse.shapes(None, shape, 0):
        problem = Problem.contiguous(m, n, k)
        choice = choose(problem, arch, sms, name)
        wanted += recipes(choice.kernel, choice.config, problem, arch, sms)
    return wanted
