"""Products of a case's operands: checked against FP64, and timed against cuBLAS's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ... import api
from ...calls.launch import bound_for
from ...runtime.device import Gpu
from ...selection.choose import Choice
from .errors import errors
from .operands import Arrays, launcher
from .peers import Peer
from .suites import Case
from .timer import Comparison, Timer, Work
from .variants import IEEE, Variant

Row = dict[str, Any]
# Of A, B and C a call that enqueues the product; it returns the result where that is not written to C.
Make = Callable[[Any, Any, Any], Callable[[], Any]]


class AgainstCublas:
    """A case on one GPU: operands in sets, and cuBLAS's products of them."""

    def __init__(self, case: Case, gpu: Gpu, peer: Peer, timer: Timer) -> None:
        self.arrays = Arrays(case, gpu, peer)
        self._case, self._peer, self._timer = case, peer, timer
        self.cublas: list[Work] = [self.by_cublas(*each) for each in self.arrays.sets]

    def by_cublas(self, a: Any, b: Any, c: Any) -> Work:
        """cuBLAS's product."""
        return partial(self._peer.multiply, a, b, c)

    def errors(self, *makes: Make) -> list[float]:
        """Largest componentwise errors of products into a C full of NaN, in eps |A||B|."""
        a, b, _ = self.arrays.sets[0]
        results = []
        for make in makes:
            out = self.arrays.blank()
            returned = make(a, b, out)()
            results.append(out if returned is None else returned)
        return errors(a, b, results)

    def works(self, make: Make) -> list[Work]:
        """A product of each operand set."""
        return [make(*each) for each in self.arrays.sets]

    def compare(self, works: list[Work], capture: bool = True) -> Comparison:
        """Time products against cuBLAS's, interleaved."""
        return self._timer.compare(works, self.cublas, capture=capture and self._peer.captures_cublas)

    def row(self, make: Make) -> Row:
        """Errors and times: all measured fields of a row."""
        error, reference_error = self.errors(make, self.by_cublas)
        works = self.works(make)
        return {"backend": "gpu", "max_error": error, "reference_error": reference_error, "operand_sets": len(works),
                **self.compare(works).to_json(self._case.flops)}


def ours(choice: Choice, variant: Variant, arrays: Arrays, gpu: Gpu, peer: Peer) -> tuple[Row, Make]:
    """Our product, and fields of its row that are known before it is timed.

    All that `peakgemm.matmul` enqueues for a choice, the split of the operands included, past the call itself; where
    the variant has B prepared, the call itself with what `peakgemm.prepare` made of B.
    """
    precision = variant.precision
    facts = {} if precision == IEEE.precision else {"path": _path(precision, *arrays.sets[0])}
    if variant.prepared:
        def prepared(a: Any, b: Any, c: Any) -> Work:
            ready = api.prepare(b, precision=precision)

            def call() -> None:
                api.matmul(a, ready, out=c, precision=precision)
            return call
        return facts, prepared
    bound = bound_for(arrays.problem, gpu, choice)
    launch = launcher(bound, peer)
    return {"workspace_bytes": bound.workspace_bytes, **facts}, lambda a, b, c: launch(*arrays.of(a, b, c))


def _path(precision: str, a: Any, b: Any, c: Any) -> str | None:
    """Which way the device took with these values."""
    plan = api.plan(a, b, out=c, precision=precision)
    plan.execute(a, b, out=c)
    return plan.last_path()
