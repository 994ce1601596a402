"""How a kernel of the user's own is launched: by the options, and else as the host code of its file does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InvalidValue
from ..runtime.source import SUFFIXES as CUDA
from ..tools.simulator.front import host_code
from ..tools.simulator.front.arguments import argument
from ..tools.simulator.front.launches import Launch, Pointer
from ..tools.simulator.front.sources import offered
from . import parse


@dataclass
class OwnLaunch:
    """``said``: which launch of the host code it is, with what its size stands for; empty: it is of the options."""

    entry: str | None
    grid: Sequence[int]
    block: Sequence[int]
    args: list[Any]
    shared: int
    said: str = ""


def own_launch(path: Path, entry: str | None, grid: str | None, block: str | None, words: Sequence[str],
               shared: int | None, macros: Mapping[str, int], include: Sequence[Path], size: str | None = None,
               fill: str = "normal", max_memory: int = 4 << 30) -> OwnLaunch:
    """The launch of the kernel in a file. ``fill`` is that of arrays of floats that host code allocates.

    Raises:
        InvalidValue: there is no such file; or what no option says the host code does not say, too.
    """
    if not path.is_file():
        raise InvalidValue(f"{path} is not a file; name a .cu or .ptx file, or a rung such as 12")
    given = grid is not None and block is not None
    square = parse.shapes(size, None, 0)[0][0] if size else None
    whole = given and words and not size  # then host code has nothing to say
    launch = offered(path, entry, macros, include, square) if path.suffix in CUDA and not whole else None
    if launch is None:
        if given and size:
            raise InvalidValue(f"--size {size}: {path.name} has no launch in which it could stand for something; leave "
                               "it out, for --arg says the sizes")
        if grid is None or block is None:
            parser = path.suffix in CUDA and not host_code.available()
            raise InvalidValue(f"{path} needs --grid and --block, such as --grid 4x4 --block 256"
                               + f"; or, for the launch in its host code, run: {host_code.REMEDY}" * parser)
        return OwnLaunch(entry, parse.triple("--grid", grid), parse.triple("--block", block),
                         [argument(word, number, max_memory) for number, word in enumerate(words)], shared or 0)
    options = {"--grid": grid, "--block": block, "--arg": words, "--shared": shared}
    if missing := [one for one in launch.unknown if not options[one.split()[0]]]:
        wanted = ", ".join(dict.fromkeys(one.split()[0] for one in missing))
        raise InvalidValue(f"{launch.where}: the launch of {launch.kernel} takes values that only a run knows "
                           f"({'; '.join(missing)}); pass {'--size N, or ' * (size is None)}{wanted}"
                           + f". {launch.complaint}" * bool(launch.complaint))
    blocks = parse.triple("--grid", grid) if grid else launch.grid
    threads = parse.triple("--block", block) if block else launch.block
    assert blocks is not None and threads is not None  # for nothing is missing
    args = ([argument(word, number, max_memory) for number, word in enumerate(words)] if words else
            _arguments(launch, fill, max_memory))
    bytes_ = launch.shared or 0 if shared is None else shared
    sized = (f"; {size} stands for {', '.join(launch.sized)}" if launch.sized else
             f"; its sizes are constants: --size {size} changes nothing" if size else "")
    return OwnLaunch(launch.kernel, blocks, threads, args, bytes_, f"{launch.where}: {launch.kernel}, grid "
                     f"{_shown(blocks)}, block {_shown(threads)}, {bytes_} bytes of dynamic shared memory, arguments "
                     f"{', '.join(map(_word, launch.names, args))}{sized}")


def _arguments(launch: Launch, fill: str, max_memory: int) -> list[Any]:
    """Arrays that point into one allocation are views of one array."""
    memory: dict[str, Any] = {}
    args: list[Any] = []
    for number, one in enumerate(launch.args):
        if isinstance(one, Pointer):
            if not 0 <= one.offset < one.elements:
                raise InvalidValue(f"{launch.where}: {launch.names[number]} is {one.name} + {one.offset}, beyond its "
                                   f"{one.elements} elements; correct the launch, or pass --arg")
            key = f"{one.name}:{one.dtype}"
            if key not in memory:
                word = f"{one.dtype}:{one.elements}:{fill if one.dtype[0] == 'f' else 'zeros'}"
                memory[key] = argument(word, number, max_memory)
            args.append(memory[key][one.offset:])
        else:
            args.append(one)
    return args


def _word(name: str, value: Any) -> str:
    return f"{name} = {value.dtype}[{value.size}]" if isinstance(value, np.ndarray) else f"{name} = {value}"


def _shown(items: Sequence[int]) -> str:
    return "x".join(map(str, items))
