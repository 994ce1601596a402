"""A product of matrices in ``.npy`` files, which neither the GPU's memory nor the machine's need hold.

Tiles of the result are computed one by one, from the files' pages into the output's. It is written under another name,
with a `Journal` beside it, and gets its own when it is complete.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...arrays.base import FLOAT, check_dtype
from ...arrays.numpy import Numpy, host_view
from ...errors import InvalidType, InvalidValue
from ...problem import Problem
from ...runtime.device import Gpu
from ..launch import canonical_request, choice_for
from ..request import Request, check_precision, flag, scales
from . import multi_gpu, products
from .grid import BLOCKS, Grid, Tile, grid
from .journal import VERSION, Journal, checksum

_SUMMERS = 4  # threads for checksums, of about 1 GB/s each


@dataclass(frozen=True, slots=True)
class Written:
    """What `multiply_files` did: sizes, tiles that it computed and tiles that were there, seconds."""

    path: Path
    shape: tuple[int, int]
    inner: int
    computed: int
    found: int
    seconds: float
    where: str

    @property
    def flops(self) -> int:
        """Floating-point operations of the whole product."""
        return 2 * self.shape[0] * self.shape[1] * self.inner


def multiply_files(a: Any, b: Any, out: Any, *, c: Any = None, alpha: Any = 1.0, beta: Any = None,
                   trans_a: bool = False, trans_b: bool = False, precision: str = "ieee", devices: Any = None,
                   overwrite: bool = False, progress: Callable[[int, int], None] | None = None,
                   blocks: Sequence[int] | None = None) -> Written:
    """``alpha op(a) op(b) + beta c`` of matrices in ``.npy`` files, into the file ``out``.

    It can be killed at any time: the same call goes on with the tiles that are not finished. Until all are, the output
    is ``out`` + ``.partial``, beside ``out`` + ``.journal``. Arguments are checked before a file is made, and an error
    before a tile is finished leaves none.

    Args:
        a, b, c: paths of float32 matrices, ``(M, K)``, ``(K, N)`` after ``op``, and ``(M, N)``, ``(N,)`` or ``(1, N)``.
        out: the path of the result, row-major; a symbolic link is followed, and the others lie beside its target.
        alpha, beta, trans_a, trans_b, precision: as for `peakgemm.gemm`.
        devices: as for `peakgemm.matmul`.
        overwrite: replace an ``out`` that is there, when its successor is complete.
        progress: called with elements finished, and in all.
        blocks: sides of a tile to choose from, falling; None: those of `peakgemm.calls.host.grid`.

    Raises:
        InvalidType, InvalidValue: no such file, no float32 matrix, shapes that do not match, an ``out`` that is there,
            an input or no regular file, a full disk, or inputs that have changed since the product began. What is
            finished stays.
    """
    start = perf_counter()
    precision = check_precision(precision)
    trans_a, trans_b = flag(trans_a, "trans_a"), flag(trans_b, "trans_b")
    alpha, beta = scales(alpha, beta, c)
    paths = {name: _path(path, name) for name, path in (("a", a), ("b", b), ("c", c))
             if path is not None or name != "c"}
    arrays = {name: opened(path, name) for name, path in paths.items()}
    target, partial, journal_path = outputs(out)
    request = Request(arrays["a"], arrays["b"], arrays.get("c"), None, alpha, beta, trans_a, trans_b, precision)
    views = {name: host_view(x) for name, x in request.arrays().items()}
    m, n = shape = canonical_request(request, views).shape
    if 0 in shape:
        raise InvalidValue(f"the result has shape {shape}; there is nothing to write")
    k = request.a.shape[0 if trans_a else 1]
    gpus = multi_gpu.chosen(devices)
    products.refuse_scheme(request, gpus)
    for gpu in gpus:  # refuses a scheme that the GPU has no kernels for
        choice_for(Problem.contiguous(min(m, BLOCKS[0]), min(n, BLOCKS[0]), k, alpha, beta), gpu, precision)
    head = _head(paths, request, (m, n))
    _check_output(target, partial, journal_path, overwrite, paths)
    anew = grid(m, n, k, None, blocks) if blocks is not None else multi_gpu.cut(m, n, k, gpus)
    journal = Journal(journal_path, head | {"cuts": [[x.stop for x in side] for side in (anew.rows, anew.columns)]})
    try:
        rows, columns = (tuple(slice(*ends) for ends in pairwise([0, *side])) for side in journal.head["cuts"])
        tiles = Grid(rows, columns)
        total = kept = len(tiles.tiles())
        renamed = target.exists() and not partial.exists() and set(journal.sums) == set(range(total))
        if not renamed:  # by a run that was killed before it could remove the journal
            result = _output(partial, (m, n), journal)
            work, _ = products.prepare(Numpy(), request._replace(out=result))
            _verify(journal, result, tiles.tiles())
            kept = len(journal.sums)
            if kept < total:
                _run(work, gpus, tiles, journal, progress)
            if _head(paths, request, (m, n)) != head:
                raise InvalidValue(f"an input changed while it was read, so that {partial} is of neither; remove it "
                                   f"and {journal_path}, and begin anew")
            _complete(result, partial, target)
        journal.remove()
    except BaseException:
        if not journal.sums:  # nothing to go on with, and in the way of a corrected call
            partial.unlink(missing_ok=True)
            journal.remove()
        raise
    finally:
        journal.close()
    where = " and ".join(gpu.name for gpu in gpus) or f"CPU: NumPy {np.__version__}"
    return Written(Path(out), (m, n), k, total - kept, kept, perf_counter() - start, where)


def _run(work: Request, gpus: Sequence[Gpu], tiles: Grid, journal: Journal,
         progress: Callable[[int, int], None] | None) -> None:
    """Compute the tiles that the journal does not name, and write each down with a checksum: of tiles from a GPU by
    threads beside those that copy."""
    every, finished = tiles.tiles(), set(journal.sums)
    done, total, lock = sum(every[number].area for number in finished), work.out.size, Lock()
    pending: deque[Future[None]] = deque()
    if done and progress is not None:
        progress(done, total)

    def finish(number: int) -> None:
        nonlocal done
        crc = checksum(work.out[every[number].slices])
        with lock:
            journal.add(number, crc)
            done += every[number].area
            if progress is not None:
                progress(done, total)

    with ThreadPoolExecutor(_SUMMERS, "peakgemm-sum") as pool:
        def submit(number: int) -> None:
            pending.append(pool.submit(finish, number))
            while pending and pending[0].done():
                pending.popleft().result()  # a full disk ends the product now

        multi_gpu.run(work, gpus, tiles, finished=finished, done=submit if gpus else finish)
    for future in pending:
        future.result()


def _path(value: Any, name: str) -> Path:
    try:
        path = Path(value)
    except TypeError:
        raise InvalidType(f"{name} is {value!r}, of type {type(value).__name__}; pass the path of a .npy "
                          "file") from None
    if "\0" in str(path):
        raise InvalidValue(f"{name} = {str(path)!r} is no path: it has a zero byte; pass the path of a .npy file")
    return path


def outputs(out: Any) -> tuple[Path, Path, Path]:
    """The file that is written as ``out``, where a link leads, and what lies beside it until it is complete: the
    partial output and the journal.

    Raises:
        InvalidType, InvalidValue: no path, or a folder's.
    """
    target = _path(out, "out")
    if os.path.islink(target):
        target = Path(os.path.realpath(target))
    if os.path.isdir(target):  # False where Path.is_dir raises: a name that is too long
        raise InvalidValue(f"out = {os.fspath(out)!r} is a folder; name the file to write, such as c.npy")
    return target, target.with_name(target.name + ".partial"), target.with_name(target.name + ".journal")


def opened(path: Path, name: str) -> NDArray[np.float32]:
    """The matrix in a ``.npy`` file, its pages read as they are needed.

    Raises:
        InvalidValue: no such file, or no array that fits in it.
        InvalidType: not float32.
    """
    if os.path.exists(path) and not os.path.isfile(path):  # to open a FIFO would wait
        raise InvalidValue(f"{name}: {path} is no regular file, so that it cannot be mapped; name a .npy file")
    try:
        x = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise InvalidValue(f"{name}: cannot read {path} ({error.strerror or error}); name a .npy file") from None
    except Exception as error:  # EOFError of an empty file, OverflowError of a negative size, TokenError of odd headers
        raise InvalidValue(f"{name}: {path} holds no array that can be mapped ({error}); write it with numpy.save"
                           ) from None
    if not isinstance(x, np.ndarray):
        raise InvalidType(f"{name}: {path} is an archive; name a .npy file, written with numpy.save")
    check_dtype(str(x.dtype), name)
    if x.ndim != 2 and not (name == "c" and x.ndim == 1):
        raise InvalidValue(f"{name}: {path} has shape {x.shape}; a matrix is wanted")
    return x


def _head(paths: dict[str, Path], r: Request, shape: tuple[int, int]) -> dict[str, Any]:
    """What makes the product this one: a run goes on only with the same."""
    head: dict[str, Any] = {"version": VERSION}
    for name, path in paths.items():
        try:
            status = path.stat()
            with path.open("rb") as file:
                first = file.read(4096)
        except OSError as error:
            raise InvalidValue(f"{name}: cannot read {path} ({error.strerror}); name a .npy file") from None
        head[name] = {"path": str(path.resolve()), "bytes": status.st_size, "mtime_ns": status.st_mtime_ns,
                      "first bytes": zlib.crc32(first)}
    return head | {"shape": list(shape), "alpha": r.alpha, "beta": r.beta, "trans_a": r.trans_a, "trans_b": r.trans_b,
                   "precision": r.precision}


def _check_output(target: Path, partial: Path, journal: Path, overwrite: bool, inputs: dict[str, Path]) -> None:
    if not os.path.isdir(target.parent):
        raise InvalidValue(f"cannot write {target}: there is no folder {target.parent}; make it")
    try:
        for written in (target, partial, journal):
            if not written.exists() and not written.is_symlink():
                continue
            if not written.is_file() or written.is_symlink():  # the target is none, unless it leads to itself
                raise InvalidValue(f"{written} is no regular file, and would be replaced by one; name another output")
            for name, path in inputs.items():
                if written.samefile(path):
                    raise InvalidValue(f"{written} is {name}, an input, which is never replaced; name another output")
    except OSError as error:
        raise InvalidValue(f"cannot write {target} ({error.strerror}); name another output") from None
    if target.exists() and not overwrite and not journal.exists():
        raise InvalidValue(f"{target} is there already; name another output, or pass overwrite (--overwrite)")
    if partial.exists() and not journal.exists():
        raise InvalidValue(f"{partial} is there, without a journal that says what of it is finished; remove it")


def _output(partial: Path, shape: tuple[int, int], journal: Journal) -> NDArray[np.float32]:
    """The output's pages: those that are there, or new ones, for all of which the disk has room."""
    with suppress(FileNotFoundError, EOFError, ValueError):  # the last two: it is short
        if journal.sums:
            kept: NDArray[np.float32] = np.load(partial, mmap_mode="r+")
            if kept.shape == shape:
                return kept
    journal.sums.clear()
    try:
        result = np.lib.format.open_memmap(partial, "w+", np.float32, shape)
        with partial.open("rb+") as file:
            _allocate(file.fileno(), partial.stat().st_size)
    except OSError as error:
        free = shutil.disk_usage(partial.parent).free
        raise InvalidValue(f"no room for {partial}: {FLOAT * shape[0] * shape[1]:,} bytes wanted ({error.strerror}), "
                           f"{free:,} free now; free space, or name an output on another disk") from None
    return result


def _allocate(file: int, size: int) -> None:
    """Have the disk set ``size`` bytes aside: a page that cannot be written later would kill the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.ftruncate(file, size)


def _verify(journal: Journal, result: NDArray[np.float32], tiles: Sequence[Tile]) -> None:
    """Drop tiles whose bytes are not what the journal says."""
    with ThreadPoolExecutor(_SUMMERS, "peakgemm-sum") as pool:
        actual = pool.map(lambda number: checksum(result[tiles[number].slices]), journal.sums)
        journal.sums = {number: crc for (number, crc), same in zip(journal.sums.items(), actual, strict=True)
                        if crc == same}


def _complete(result: Any, partial: Path, target: Path) -> None:
    result.flush()
    with partial.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(partial, target)
    with suppress(OSError, AttributeError):  # so that the name survives a loss of power, where folders can be opened
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
