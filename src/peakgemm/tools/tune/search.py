"""The search on the GPU: candidates compiled, checked against FP64 and timed; the outcome kept."""

from __future__ import annotations

import logging
from dataclasses import replace

from ...calls.request import REPRODUCIBLE
from ...errors import InvalidValue, PeakgemmError
from ...kernels.bound import bind
from ...kernels.registry import Kernel
from ...problem import Config, Problem, varied
from ...runtime import device
from ...runtime.compile import in_parallel
from ...runtime.device import Gpu
from ...selection.choose import Candidate, choose
from ..bench.errors import bound
from ..bench.operands import Flat, launches
from ..bench.peers import Peer, visiting
from ..bench.timer import Comparison, Timer
from . import store
from .halving import Outcome, halve
from .space import KEEP, candidates

log = logging.getLogger("peakgemm")
SECONDS = 0.6


def plain(problem: Problem) -> Problem:
    """The problem with alpha 1 and beta 0: what is timed in its place, and what its entry holds for."""
    return replace(problem, alpha=1.0, beta=0.0, c0=None)


def search(problem: Problem, gpu: Gpu, peer: Peer, timer: Timer, *, seconds: float = SECONDS, keep: int = KEEP,
           precision: str = "ieee") -> Outcome:
    """Time candidates (`space.candidates`) for a problem on ``gpu``, in the current context; nothing is kept.

    Raises:
        CompileFailed, LaunchFailed, MissingComponent: the default itself cannot run.
    """
    problem = plain(problem)
    ranked = candidates(problem, gpu.arch, gpu.sm_count, gpu.name, keep, precision)
    if problem.flops == 0:
        return Outcome(ranked[0], 1.0, (1.0, 1.0), None, False, 0)
    _compile(ranked, problem, gpu)
    memory = Flat(problem, gpu, peer)
    baseline = launches(bind(ranked[0].kernel, ranked[0].config, problem, gpu), memory.addresses, peer)

    def compare(candidate: Candidate, budget: float) -> Comparison:
        ours = launches(bind(candidate.kernel, candidate.config, problem, gpu), memory.addresses, peer)
        return timer.compare(ours, baseline, seconds=budget)

    def wrong(candidate: Candidate) -> str | None:
        error = memory.error(bind(candidate.kernel, candidate.config, problem, gpu))
        return None if error <= bound(problem.k) else f"wrong product, {error:.3g} eps |A||B|"

    return halve(ranked, compare, wrong, seconds)


def tune(problem: Problem, gpu: Gpu, peer: Peer, timer: Timer, *, seconds: float = SECONDS, keep: int = KEEP
         ) -> Outcome:
    """`search`, and keep the outcome.

    Raises:
        InvalidValue: the entry cannot be written.
        CompileFailed, LaunchFailed, MissingComponent: the default itself cannot run.
    """
    outcome = search(problem, gpu, peer, timer, seconds=seconds, keep=keep)
    store.save(gpu.name, problem, outcome, choose(plain(problem), gpu.arch, gpu.sm_count, gpu.name).source)
    return outcome


def best(problem: Problem, gpu: Gpu, precision: str = "ieee") -> tuple[Kernel, Config]:
    """The fastest kernel and configuration for ``problem`` on ``gpu``: what `Plan.autotune` asks.

    The outcome is kept, for later calls and processes, where that is possible. For ``"emulated"`` fp16x3 is timed
    against the IEEE kernel; where the model takes no tensor cores, IEEE kernels are timed as for ``"ieee"``. A scheme
    that is named, and a reproducible product, keep the model's choice. The caller's streams and switches stay as they
    are; memory for operands, beyond twice the L2, is used meanwhile.

    Raises:
        MissingComponent: neither torch nor CuPy is installed with a GPU build.
        CompileFailed, LaunchFailed: the default itself cannot run.
    """
    default = choose(problem, gpu.arch, gpu.sm_count, gpu.name, precision)
    if precision == REPRODUCIBLE or default.source == "named":
        return default.kernel, default.config
    if default.kernel.family.scheme is None:
        precision = "ieee"
    with device.activated(gpu.index), visiting() as peer:
        outcome = search(problem, gpu, peer, Timer(peer, SECONDS), precision=precision)
    source = choose(plain(problem), gpu.arch, gpu.sm_count, gpu.name, precision).source
    try:
        if precision == "ieee" or outcome.best is not None:
            store.save(gpu.name, problem, outcome, source, precision)
    except (InvalidValue, OSError) as error:
        log.warning("peakgemm: the outcome of autotuning holds for this plan or call only: %s", error)
    return outcome.winner.kernel, outcome.winner.config


def _compile(ranked: list[Candidate], problem: Problem, gpu: Gpu) -> None:
    """Compile in parallel, once for all splits of a configuration; a refusal is met again when it is timed."""
    each = {(c.kernel.name, varied(c.config, split=1)): c for c in ranked}

    def one(candidate: Candidate) -> None:
        try:
            bind(candidate.kernel, candidate.config, problem, gpu)
        except PeakgemmError:
            log.debug("%s cannot run", candidate.label, exc_info=True)

    in_parallel(one, list(each.values()))
