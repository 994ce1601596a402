"""What times the kernels of a plan on a GPU: all compiled ahead, in parallel, then each product's in turns."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from lab.profile.plan import Planned, compilations, key, programs
from peakgemm.errors import PeakgemmError
from peakgemm.kernels.bound import bind
from peakgemm.kernels.profile import Machine
from peakgemm.kernels.recipe import Recipe
from peakgemm.kernels.registry import Kernel
from peakgemm.problem import Config, Problem
from peakgemm.runtime.compile import in_parallel
from peakgemm.runtime.device import Gpu
from peakgemm.tools.bench.operands import Flat, launches
from peakgemm.tools.bench.peers import Peer
from peakgemm.tools.bench.timer import Timer, Work

log = logging.getLogger("peakgemm")
ROUNDS = 5
BURST_MS = 0.6  # of each round: 3 % of noise a round, half of that in the median, at a tenth of a comparison's time

Row = tuple[Kernel, Config]
Done = Callable[[str], None]


class Stopwatch(Protocol):
    """Something that times kernels."""

    def compile(self, planned: Sequence[Planned], deadline: float, done: Done) -> list[Planned]:
        """Compile what is planned until a moment of `time.monotonic`; of what was planned, all that can be timed."""

    def times(self, problem: Problem, rows: Sequence[Row]) -> list[list[float] | None]:
        """Microseconds of each round, of each row; None: it does not run."""


class GpuStopwatch:
    """`Stopwatch` of a GPU in the current context."""

    def __init__(self, gpu: Gpu, machine: Machine, peer: Peer, rounds: int = ROUNDS) -> None:
        self._gpu, self._machine, self._peer, self._rounds = gpu, machine, peer, rounds
        self._timer = Timer(peer)

    def compile(self, planned: Sequence[Planned], deadline: float, done: Done) -> list[Planned]:
        ready: set[tuple[object, ...]] = set()

        def make(job: tuple[tuple[object, ...], Recipe]) -> None:
            if time.monotonic() < deadline:
                try:
                    job[1].make("cubin")
                    ready.add(job[0])
                except PeakgemmError:
                    log.debug("%s does not compile", job[1].file, exc_info=True)
            done(job[1].file)

        in_parallel(make, programs(planned, self._machine).items())

        def can(problem: Problem, row: Row) -> bool:
            return all(key(made) in ready for made in compilations(*row, problem, self._machine))

        found = [Planned(one.case, one.problem, tuple(row for row in one.rows if can(one.problem, row)))
                 for one in planned]
        return [one for one in found if len(one.rows) > 1]

    def times(self, problem: Problem, rows: Sequence[Row]) -> list[list[float] | None]:
        memory = Flat(problem, self._gpu, self._peer)
        kinds: list[list[Work]] = []
        runs: list[int | None] = []
        for kernel, config in rows:
            try:
                kinds.append(launches(self._bound(kernel, config, problem), memory.addresses, self._peer))
                runs.append(len(kinds) - 1)
            except Exception:  # a compiler's or a driver's refusal: the others go on
                log.debug("%s %s does not run", kernel.name, config.label(), exc_info=True)
                runs.append(None)
        found = self._timer.each(kinds, ms=BURST_MS, rounds=self._rounds)
        del memory  # the operands stay until here: `launches` holds addresses alone
        return [None if i is None else [1e3 * ms for ms in found[i]] for i in runs]

    def _bound(self, kernel: Kernel, config: Config, problem: Problem) -> Any:
        return bind(kernel, config, problem, self._gpu)
