"""``peakgemm cache``: the compile cache on disk."""

from __future__ import annotations

import typer

from ..runtime import cache
from .console import out

app = typer.Typer(no_args_is_help=True, help="The compile cache: info, clear.")


@app.command()
def info() -> None:
    """Where the cache lies and how large it is."""
    files = [f for f in cache.folder().rglob("*") if f.is_file()] if cache.folder().is_dir() else []
    size = sum(f.stat().st_size for f in files)
    out.print(f"{cache.folder()}: {len(files)} files, {size / 1e6:.1f} MB of at most {cache.MAX_BYTES / 1e6:.0f} MB",
              markup=False)


@app.command()
def clear() -> None:
    """Remove every compiled kernel."""
    cache.clear()
    out.print(f"{cache.folder()}: cleared", markup=False)
