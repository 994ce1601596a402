"""Large products of host arrays on one device or several: NumPy's where there is none.

Each device has a thread, and a queue of tiles that others may take from: see `TileQueue`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import prod
from operator import index
from threading import Thread
from typing import Any

import numpy as np

from ...arrays.base import FLOAT, View
from ...errors import InvalidType, InvalidValue
from ...runtime import device, peers
from ...runtime.device import Gpu, activated
from ...runtime.lanes import lane
from ...runtime.memory import free_bytes
from ...runtime.pools import KEPT_BYTES
from ..request import Request
from .cpu import by_numpy
from .grid import Grid, assign_tiles, batch_grid, grid
from .results import SLOTS
from .tile_queue import Job, TileQueue
from .worker import Worker

log = logging.getLogger("peakgemm")
_SHARE = 0.9  # of a device's free memory: other libraries of the process allocate meanwhile
VARIABLE = "PEAKGEMM_DEVICES"


def chosen(devices: Any) -> list[Gpu]:
    """The GPUs that ``devices`` names: ``"all"``, an index, or several (in a string with commas between); None: the
    current one. Without a GPU None and ``"all"`` are none, which is NumPy.

    Raises:
        InvalidType, InvalidValue: no such name; or two of one.
        MissingComponent: no such GPU.
    """
    if devices is None:
        here = device.find()
        return [] if here is None else [here]
    names = devices
    if isinstance(names, str):
        if names.strip().lower() == "all":
            return [device.require(i) for i in range(device.count())]
        try:
            names = [int(part) for part in names.split(",")]
        except ValueError:
            raise InvalidValue(f"devices = {names!r}; pass 'all', an index, or several: '0,1'") from None
    elif isinstance(names, (int, np.integer)):
        names = [names]
    try:
        names = list(names)
        indices = [index(i) for i in names]
    except TypeError:
        indices = []
    if not indices or any(isinstance(i, bool) for i in names):
        raise InvalidType(f"devices = {devices!r}; pass 'all', an index, or a list of indices")
    if len(set(indices)) < len(indices):
        raise InvalidValue(f"devices = {indices} names a GPU twice; name each once")
    return [device.require(i) for i in indices]


def cut(m: int, n: int, k: int, gpus: Sequence[Gpu]) -> Grid:
    """The tiles of a product of matrices: see `grid`."""
    return grid(m, n, k, min((_room(gpu) for gpu in gpus), default=None))


def run(r: Request, gpus: Sequence[Gpu], tiles: Grid | None = None, *, resident: View | None = None,
        finished: Iterable[int] = (), done: Callable[[int], None] | None = None) -> None:
    """``alpha a b + beta c`` into ``out``, NumPy matrices or batches, ``c`` of out's shape; returns when it lies there.

    Args:
        gpus: the devices; none: NumPy.
        tiles: where to cut; None: see `cut`.
        resident: ``b`` as it lies on the only device already.
        finished: numbers of tiles that lie in ``out`` already.
        done: called with the number of each tile that lies there, in any thread, once at a time.

    Raises:
        OutOfMemory: not even the smallest tiles fit.
        LaunchFailed: the driver refused something else.
    """
    (*batch, m, n), k = r.out.shape, r.a.shape[-1]
    r = r._replace(a=np.broadcast_to(r.a, (*batch, m, k)), b=np.broadcast_to(r.b, (*batch, k, n)))
    rooms = [_room(gpu) for gpu in gpus]
    if batch:
        tiles = batch_grid(tuple(batch), m, n, k, _moved(r) // prod(batch), min(rooms, default=None))
    tiles = tiles or grid(m, n, k, min(rooms, default=None))
    if not gpus:
        _on_cpu(r, tiles, set(finished), done)
        return
    if len({gpu.name for gpu in gpus}) > 1:
        kinds = ", ".join(f"GPU {gpu.index}: {gpu.name}, {gpu.peak_tflops:.0f} TFLOPS" for gpu in gpus)
        log.warning("GPUs of unlike kinds share a product, by their speed (%s); its bits depend on which of them "
                    "computes what", kinds)
    matrices, rows, columns = tiles.largest
    result = FLOAT * 2 * matrices * rows * columns  # and of c
    slots = max(2, min(SLOTS, min(rooms) // 8 // result, *[KEPT_BYTES // result] * bool(batch)))
    beside = slots * result + FLOAT * 2 * 2 * matrices * k * (rows + columns)  # and workspaces
    budgets = [max(room - beside, room // 2) for room in rooms]
    whole = FLOAT * matrices * k * (m + (0 if resident is not None else n))
    if batch:  # memory of one group serves the next: no more than the pool keeps, for to map more takes time
        budgets = [min(budget, max(KEPT_BYTES, 3 * whole)) for budget in budgets]
    heights = [None if whole <= budget else max(1, int(budget / 2 / (FLOAT * k * rows))) for budget in budgets]
    queue = TileQueue(assign_tiles(tiles, [gpu.peak_tflops for gpu in gpus], heights, finished), done)
    shared = (len(gpus) > 1 and not batch and all(height is None for height in heights)
              and peers.connect([gpu.index for gpu in gpus]))
    _work(Job(r, queue, len(gpus), resident, shared), gpus, budgets, slots)


def _work(job: Job, gpus: Sequence[Gpu], budgets: Sequence[int], slots: int) -> None:
    """Run a worker on each device; the first error stops all."""
    def work(worker: Worker, gpu: Gpu) -> None:
        with activated(gpu.index):
            worker.run()

    with ExitStack() as workers:
        each = [(workers.enter_context(_worker(job, i, gpu, budget, slots)), gpu)
                for i, (gpu, budget) in enumerate(zip(gpus, budgets, strict=True))]
        threads = [Thread(target=work, args=pair, name=f"peakgemm-gpu-{pair[1].index}", daemon=True)
                   for pair in each[1:]]
        for thread in threads:
            thread.start()
        work(*each[0])
        for thread in threads:
            thread.join()
        for worker, gpu in each:
            with activated(gpu.index):
                worker.rest()
        try:
            if job.queue.error is not None:  # before the lanes are given back, which only know that something failed
                raise job.queue.error
        finally:
            job.queue.forget()


@contextmanager
def _worker(job: Job, number: int, gpu: Gpu, budget: int, slots: int) -> Iterator[Worker]:
    """A worker on a lane of its own; its memory is freed behind the block."""
    with lane(gpu.index, job.workers) as way:
        worker = Worker(job, number, gpu, way, budget, slots)
        try:
            yield worker
        finally:
            worker.free()


def _moved(r: Request) -> int:
    """Bytes of a batch, but for an operand that all matrices share."""
    return sum(FLOAT * prod(size for size, step in zip(x.shape, x.strides, strict=True) if step)
               for x in (r.a, r.b, r.c, r.out) if x is not None and any(x.strides[:-2]))


def _room(gpu: Gpu) -> int:
    with activated(gpu.index):
        return int(_SHARE * free_bytes())


def _on_cpu(r: Request, tiles: Grid, finished: set[int], done: Callable[[int], None] | None) -> None:
    for tile in tiles.tiles():
        if tile.number not in finished:
            of_a, of_b = (*tile.matrices, tile.rows), (*tile.matrices, slice(None), tile.columns)
            c = None if r.c is None else r.c[tile.slices]
            by_numpy(r._replace(a=r.a[of_a], b=r.b[of_b], c=c, out=r.out[tile.slices]))
            if done is not None:
                done(tile.number)
