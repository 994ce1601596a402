"""How ranks pass parts of matrices to each other while they multiply.

A rank's copy engines write into its peers' memory, and words there say what has arrived.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from ..calls import eager
from ..errors import CompileFailed, LaunchFailed, MissingComponent
from ..kernels.exchange import all_gather
from ..runtime import memory, signals
from ..runtime.device import require

log = logging.getLogger("peakgemm")
# Behind the halves: a word for each rank that counts parts, and from these bytes on one that counts blocks of
# all_gather.cu, what that one is to be, and one that ends all waiting.
_BLOCKS, _EXPECTED, _GIVEN_UP, _FLAGS_BYTES = 2048, 3072, 3584, 4096
_RELEASED = 0x7FFFFFFF
GATHER_BYTES = 8 << 20  # of a rank: more is for the copy engines, which take no SM


class Exchange:
    """Parts of matrices from rank to rank, by torch's symmetric memory on the GPUs of one host.

    One call after the other, on all ranks alike: `begin`, any number of `push` and `pull`, `end`. A rank's pulls from
    another are in the order of that one's pushes.

    Two halves serve calls in turn. A rank writes to a half when all others have pushed in the call before, which they
    do after they have read what came in the call before that: so the half is free, and no word has to say so.

    Attributes:
        world, rank, device, timeout_s: the group's; after so long a rank that has not answered is given up.
        by_kernel: whether `gather` may run a kernel, which all ranks must do or none; false where this one cannot.

    Raises:
        RuntimeError: torch's, where the GPUs cannot reach each other.
    """

    def __init__(self, group: dist.ProcessGroup, timeout_s: float) -> None:
        self._group, self.world, self.rank = group, dist.get_world_size(group), dist.get_rank(group)
        self.device = torch.device("cuda", torch.cuda.current_device())
        self._side = torch.cuda.Stream(self.device, priority=-1)
        self._beside = int(self._side.cuda_stream)
        self._here = 0  # the current stream
        self._mark = memory.event(self._beside)
        self._held: list[Tensor] = []  # what the side stream reads: past a call's end the current stream waits for it
        self.timeout_s = timeout_s
        self.by_kernel = self.world <= all_gather.RANKS and self._can_compile()
        self._allocate(1 << 20)
        self._watch = _Watch(self)

    def _allocate(self, half: int) -> None:
        """Room for two halves; a collective call. What was there is finished with on all ranks."""
        import torch.distributed._symmetric_memory as symmetric

        torch.cuda.synchronize(self.device)
        dist.barrier(self._group)
        total = 2 * half + _FLAGS_BYTES
        self._memory = symmetric.empty(total, dtype=torch.uint8, device=self.device)
        handle = symmetric.rendezvous(self._memory, self._group)
        self._memory.zero_()
        self._room = self._memory.view(torch.float32)
        self._handle = handle  # which the buffers need
        self._buffers = [handle.get_buffer(rank, (total,), torch.uint8) for rank in range(self.world)]
        self._bases = [buffer.data_ptr() for buffer in self._buffers]
        self._half, self._start = half, 0
        self._sent, self._expected = [0] * self.world, [0] * self.world  # parts, by rank
        self._gathers: dict[tuple[int, int], Callable[..., None]] = {}   # by bytes and start
        torch.cuda.synchronize(self.device)
        dist.barrier(self._group)

    def flags(self, rank: int) -> int:
        """The address of a rank's words, behind its halves."""
        return int(self._bases[rank]) + 2 * self._half

    def _arrived(self, at: int, source: int) -> int:
        """The address of the word of rank ``at`` that says how many parts of ``source`` have come."""
        return self.flags(at) + 4 * source

    def begin(self, floats: int) -> None:
        """A call; ``floats``: where the last of any rank's parts ends. Memory grows with the largest call."""
        self._watch.check()
        if 4 * floats > self._half:
            self._allocate(-(-4 * floats // (1 << 20)) * (1 << 20))
        self._start = self._half // 4 - self._start  # the other half
        here = eager.current_stream(self.device.index)
        if here != self._here:  # what the calls before read comes before what this one lets others write
            signals.order(self._here, here, self._mark)
            self._here = here

    def push(self, to: int, offset: int, x: Tensor) -> None:
        """Send a packed matrix, when the current stream has made it, to where rank ``to``, maybe this one, pulls it.
        """
        signals.order(self._here, self._beside, self._mark)
        self._held.append(x)
        signals.copy(int(self._bases[to]) + 4 * (self._start + offset), x.data_ptr(), 4 * x.numel(), self._beside)
        if to != self.rank:
            self._sent[to] += 1
            signals.write(self._arrived(to, self.rank), self._sent[to], self._beside)

    def pull(self, source: int, offset: int, shape: tuple[int, int]) -> Tensor:
        """What ``source`` pushed, once the current stream comes to it; valid until `end`."""
        if source != self.rank:
            self._expected[source] += 1
            signals.wait(self._arrived(self.rank, source), self._expected[source], self._here)
        else:
            signals.order(self._beside, self._here, self._mark)
        return self.at(offset, shape)

    def at(self, offset: int, shape: tuple[int, int]) -> Tensor:
        """Neighbouring parts, all of them pulled, as one matrix."""
        return self._room.as_strided(shape, (shape[1], 1), self._start + offset)

    def end(self) -> None:
        """Nothing that was pulled is read by later work, and what was pushed may be overwritten."""
        if self._held:
            signals.order(self._beside, self._here, self._mark)
            self._held.clear()
        self._watch.add()

    def gather(self, x: Tensor) -> Tensor:
        """A call by itself: all ranks' packed matrices of one shape, one below the other; valid until the next call.
        Few bytes are moved by one kernel (all_gather.cu)."""
        (rows, k), size = x.shape, 4 * x.numel()
        by_kernel = self.by_kernel and size <= GATHER_BYTES and size % all_gather.ALIGNED == 0
        self.begin(self.world * rows * k)
        if by_kernel:
            if x.data_ptr() % all_gather.ALIGNED:
                x = x.clone()  # all ranks take the same way, whatever the addresses of each
            key = size, self._start
            if key not in self._gathers:
                self._gathers[key] = self._launcher(size)
            self._gathers[key](x.data_ptr(), 0, 0, 0, 0, self._here)
        else:
            for step in range(1, self.world + 1):
                self.push((self.rank + step) % self.world, self.rank * rows * k, x)
            for source in range(self.world):
                self.pull(source, source * rows * k, (rows, k))
        self.end()
        return self.at(0, (self.world * rows, k))

    def _can_compile(self) -> bool:
        try:
            all_gather.compiled(require(self.device.index).arch)
        except (CompileFailed, MissingComponent) as error:
            log.info("peakgemm.distributed: rank %d: no kernel that gathers (%s)", self.rank, error)
            return False
        return True

    def _launcher(self, size: int) -> Callable[..., None]:
        here, place = self.flags(self.rank), 4 * self._start + self.rank * size
        places = all_gather.Places([base + place for base in self._bases],
                                   [self.flags(rank) + _BLOCKS + 4 * self.rank for rank in range(self.world)],
                                   here + _BLOCKS, here + _EXPECTED, here + _GIVEN_UP)
        return all_gather.launcher(require(self.device.index), size, self.rank, places).enqueue


class _Watch:
    """Ends the wait for a rank that does not answer: streams are released, and the next call raises."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange, self._broken, self._lock = exchange, False, threading.Lock()
        self._end: float | None = None  # when what is watched has taken too long; None: nothing is
        self._event = torch.cuda.Event()  # one: to make it takes as long as a small copy
        self._stream = torch.cuda.Stream(exchange.device)
        threading.Thread(target=self._run, name="peakgemm-watch", daemon=True).start()

    def add(self) -> None:
        """A call ends where the current stream is now. Of several calls under way the oldest is watched."""
        with self._lock:
            if self._end is None or self._event.query():
                self._event.record(torch.cuda.current_stream(self._exchange.device))
                self._end = time.monotonic() + self._exchange.timeout_s

    def check(self) -> None:
        """Whether all ranks have answered so far.

        Raises:
            LaunchFailed: one has not, in time.
        """
        if self._broken:
            raise LaunchFailed(f"rank {self._exchange.rank} waited {self._exchange.timeout_s:.0f} s for a part of a "
                               "matrix from another rank, which has ended or hangs; the results since are not valid: "
                               "see that rank's error")

    def _run(self) -> None:
        exchange = self._exchange
        while not self._broken:
            time.sleep(0.5)
            with self._lock:
                late = self._end is not None and time.monotonic() >= self._end
                if late and self._event.query():
                    self._end = None
                elif late:
                    self._broken = True
        log.error("peakgemm.distributed: rank %d waited %.0f s for another rank, which has ended or hangs; its streams "
                  "are released, and their results are not valid", exchange.rank, exchange.timeout_s)
        # By the stream's own words: a kernel may have to be loaded first, which waits for those that wait.
        with torch.cuda.device(exchange.device):
            for word in (*(4 * source for source in range(exchange.world)), _GIVEN_UP):
                signals.write(exchange.flags(exchange.rank) + word, _RELEASED, self._stream.cuda_stream)
