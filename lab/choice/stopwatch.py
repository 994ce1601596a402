"""What times candidates on a GPU, those of a product in turns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from lab.choice.rows import Row
from peakgemm.kernels.bound import bind
from peakgemm.problem import Problem
from peakgemm.runtime.device import Gpu
from peakgemm.tools.bench.operands import Flat, launches
from peakgemm.tools.bench.peers import Peer
from peakgemm.tools.bench.timer import Timer, Work

log = logging.getLogger("peakgemm")
ROUNDS = 5
BURST_MS = 0.6  # of each round: 3 % of noise a round, half of that in the median, at a tenth of a comparison's time

Done = Callable[[str], None]


class Stopwatch(Protocol):
    """Something that times kernels."""

    def times(self, problem: Problem, rows: Sequence[Row]) -> list[list[float] | None]:
        """Microseconds of each round, of each row; None: it does not run."""


class GpuStopwatch:
    """`Stopwatch` of a GPU in the current context."""

    def __init__(self, gpu: Gpu, peer: Peer, rounds: int = ROUNDS) -> None:
        self._gpu, self._peer, self._rounds = gpu, peer, rounds
        self._timer = Timer(peer)

    def times(self, problem: Problem, rows: Sequence[Row]) -> list[list[float] | None]:
        memory = Flat(problem, self._gpu, self._peer)
        kinds: list[list[Work]] = []
        runs: list[int | None] = []
        for kernel, config in rows:
            try:
                kinds.append(launches(bind(kernel, config, problem, self._gpu), memory.addresses, self._peer))
                runs.append(len(kinds) - 1)
            except Exception:  # a compiler's or a driver's refusal: the others go on
                log.debug("%s %s does not run", kernel.name, config.label(), exc_info=True)
                runs.append(None)
        found = self._timer.each(kinds, ms=BURST_MS, rounds=self._rounds)
        del memory  # the operands stay until here: `launches` holds addresses alone
        return [None if i is None else [1e3 * ms for ms in found[i]] for i in runs]
