"""Where the headers of CUDA are: those of an installed toolkit, or of the wheels that hold them.

The library's own kernels need none. A kernel that is only simulated may: ``cuda_fp16.h``, ``mma.h``,
``cooperative_groups.h``. Of the host's headers (``cassert``, ``cstdio``) NVRTC has none; ``headers/`` stands for them.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from ..errors import CompileFailed, InvalidValue

HOST = Path(__file__).resolve().parent / "headers"
PROBE = "cuda_fp16.h"  # what a folder of CUDA's headers has
REMEDY = ("install CUDA's headers (pip install nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl, or the CUDA "
          "toolkit), set CUDA_HOME to a toolkit, or pass --include DIR with the folder that holds it")
_MISSING = re.compile(r'cannot open source file "([^"]+)"')


@cache
def toolkit() -> Path | None:
    """The folder of CUDA's headers; None: there is none here."""
    return next((folder for folder in _candidates() if (folder / PROBE).is_file()), None)


def _candidates() -> Iterator[Path]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if root := os.environ.get(variable):
            yield Path(root) / "include"
    if (found := _of_wheel("cudart")) is not None:
        yield found
    if nvcc := shutil.which("nvcc"):
        yield Path(nvcc).resolve().parent.parent / "include"
    yield Path("/usr/local/cuda/include")


def _of_wheel(library: str) -> Path | None:
    """Where cuda-pathfinder has the headers of a library; its old versions know fewer places, or none."""
    with suppress(Exception):
        from cuda.pathfinder import find_nvidia_header_directory

        if found := find_nvidia_header_directory(library):
            return Path(found)
    return None


@cache
def _theirs() -> tuple[Path, ...]:
    """The folders of CUDA's headers, those of CCCL (``cuda/std``, ``nv/target``) being beside or elsewhere."""
    found = toolkit()
    if found is None:
        return ()
    more = None if (found / "cccl").is_dir() else _of_wheel("cccl")
    return (found, *([found / "cccl"] if more is None else [more]))


def folders(own: Sequence[Path]) -> list[str]:
    """Where a compilation looks for headers: the caller's ``own`` folders first.

    Raises:
        InvalidValue: one of them is no folder.
    """
    for folder in own:
        if not folder.is_dir():
            raise InvalidValue(f"--include {folder} is not a folder; name the folder that holds the headers")
    return [str(folder) for folder in (*own, *_theirs(), HOST) if folder.is_dir()]


def hinted(error: CompileFailed) -> CompileFailed:
    """The error, with what to do about a header that was not found."""
    missing = _MISSING.search(str(error))
    if missing is None:
        return error
    found = toolkit()
    place = f"it is not in {found}" if found else "no headers of CUDA were found"
    return CompileFailed(f"{error}\n{missing[1]} was not found, and {place}: {REMEDY}")


def known(name: str) -> bool:
    """Whether the compiler will find a header without the caller's folders."""
    return any((folder / name).is_file() for folder in (*_theirs(), HOST))


def forget() -> None:
    """Look again, for what is installed may have changed."""
    toolkit.cache_clear()
    _theirs.cache_clear()
