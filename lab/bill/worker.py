"""Times the variants of main loops, in a process of its own: a variant may hang, or end the GPU's context.

    python -m lab.bill.worker '{"jobs": [["14", "8192x8192x8192"]], "rounds": 7}'

Standard output holds a line of JSON for each thing that happens: ``trying`` a variant for the first time, ``timed``
with what `bill.parts` wants of a kernel, ``done`` with a kernel, ``failed`` with one. For the profiler it launches each
kernel as it is, with K and with half of it, and its last variant likewise (``"once": "counts"``); or the last variant
(``"once": "last"``).
Nothing is kept: edited cubins live in this process alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median
from typing import Any

from lab.bill import bill
from lab.bill.loop_variants import Variant, Variants
from lab.bill.sm_cycles import SmCycles
from peakgemm.errors import InvalidValue
from peakgemm.kernels.bound import Bound
from peakgemm.kernels.patched import REBUILT
from peakgemm.problem import Problem
from peakgemm.runtime import device
from peakgemm.runtime.compile import Compiled
from peakgemm.runtime.device import Gpu
from peakgemm.tools.bench.operands import Arrays, launches
from peakgemm.tools.bench.peers import Peer, find_peer
from peakgemm.tools.bench.suites import cases
from peakgemm.tools.bench.timer import Counter, Timer, Work
from peakgemm.tools.inspect.named import named
from peakgemm.tools.inspect.subject import Subject

BURST_MS = 20.0  # of a variant in a round: at 8192 a launch or two
HALF = "half"


class Runner:
    """The variants of one kernel as work for the timer, all on the same operands."""

    def __init__(self, subject: Subject, variants: Variants, shape: str, gpu: Gpu, peer: Peer) -> None:
        self._subject, self._variants, self._gpu, self._peer = subject, variants, gpu, peer
        self._arrays = Arrays(cases(shape)[0], gpu, peer)
        self.problem = self._arrays.problem

    def works(self, variant: Variant | None, halved: bool = False) -> list[Work]:
        """Launches with ``variant`` in the kernel's place, one for each set of operands; ``halved``: of half K."""
        code = None if variant is None else self._variants.code(variant)

        def edit(compiled: Compiled) -> Compiled:
            if compiled.code != self._variants.cubin.data:
                raise InvalidValue(f"{self._subject.label}: what runs is compiled otherwise than what was looked into; "
                                   "clear the cache (peakgemm cache clear)")
            return replace(compiled, code=code, remake=None) if code is not None else compiled

        p = self.problem
        problem = Problem.contiguous(p.m, p.n, p.k // 2) if halved else p
        kernel, config = self._subject.kernel, self._subject.config
        assert kernel is not None and config is not None
        return launches(Bound(kernel, config, problem, self._gpu, edit=edit), self._arrays.addresses(), self._peer)


def measure(what: str, shape: str, rounds: int, gpu: Gpu, peer: Peer, timer: Timer, counter: Counter,
            tell: Callable[[Mapping[str, Any]], None]) -> None:
    """Run a kernel's variants for ``shape`` (``NxNxN``), count their cycles and ``tell`` of each step."""
    subject, variants = looked_into(what, shape, gpu)
    runner = Runner(subject, variants, shape, gpu, peer)
    done = bill.work(subject, variants, runner.problem, gpu.sm_count)
    chosen = [one for one in variants.steps if one.changed or one.program is variants.program]
    kinds = {one.name: runner.works(None if one.program is variants.program else one) for one in chosen}
    kinds[HALF] = runner.works(chosen[-1], halved=True)
    for name, works in kinds.items():
        tell({"trying": name, "kernel": what})
        works[0]()
        peer.record().sync()
    times, cycles, state = timer.in_turns(list(kinds.values()), ms=BURST_MS, rounds=rounds, counter=counter)
    clocks = [count / ms / 1e3 for each in zip(times, cycles, strict=True) for ms, count in zip(*each, strict=True)]
    tell({"timed": {**bill.static(subject, variants, done), "shape": [int(size) for size in shape.split("x")],
                    "clock_mhz": median(clocks), "nvml_clock_mhz": state["sm_clock_mhz"], "power_w": state["power_w"],
                    "samples_ms": dict(zip(kinds, times, strict=True)),
                    "samples_cycles": dict(zip(kinds, cycles, strict=True))}, "kernel": what})
    tell({"done": what})


def looked_into(what: str, shape: str, gpu: Gpu) -> tuple[Subject, Variants]:
    """A kernel, and its variants.

    Raises:
        InvalidValue: a rung whose loop could not be built anew from what this process has compiled.
    """
    subject = named(what, gpu.arch, shape=shape, sm_count=gpu.sm_count)
    assert subject.kernel is not None
    if subject.kernel.patched and not any(note.lower().startswith(REBUILT) for note in subject.notes):
        raise InvalidValue(f"{subject.label}: {' '.join(subject.notes)}")
    return subject, Variants.of(subject.cubin, subject.function)


def once(what: str, shape: str, gpu: Gpu, peer: Peer, last: bool) -> None:
    """Launch a kernel's ``last`` variant; or the kernel as it is, with K and with half of it, and that likewise."""
    subject, variants = looked_into(what, shape, gpu)
    runner = Runner(subject, variants, shape, gpu, peer)
    for variant in (variants.steps[-1],) if last else (None, variants.steps[-1]):
        for halved in (False,) if last else (False, True):
            runner.works(variant, halved)[0]()
            peer.record().sync()


def main() -> None:
    """Do the jobs that the first argument names."""
    asked = json.loads(sys.argv[1])
    gpu, peer = device.require(), find_peer()
    timer = Timer(peer)

    def tell(what: Mapping[str, Any]) -> None:
        print(json.dumps(what), flush=True)

    tell({"versions": peer.versions()})
    for what, shape in asked["jobs"]:
        try:
            if asked.get("once"):
                once(what, shape, gpu, peer, asked["once"] == "last")
            else:
                measure(what, shape, asked["rounds"], gpu, peer, timer, SmCycles(gpu, peer.stream), tell)
        except Exception as error:  # a fault ends the context: what comes next is for another process
            tell({"failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
                  "kernel": what})
            raise SystemExit(1) from None


if __name__ == "__main__":
    main()
