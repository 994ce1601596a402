"""What the bench times of ours: the kernels chosen for a case, or the public call with an operand made ready before."""

from __future__ import annotations

from typing import Any, Protocol

from ... import api
from ...calls.launch import bound_for
from ...runtime.device import Gpu
from ...selection.choose import Choice
from .operands import Arrays, launches
from .peers import Peer
from .timer import Work
from .variants import IEEE

Row = dict[str, Any]


class Ours(Protocol):
    """Our product on a case's arrays. ``facts``: fields of its row that are known before it is timed."""

    facts: Row

    def multiply(self, out: Any) -> None:
        """Enqueue the product of the first operand set."""

    def works(self) -> list[Work]:
        """What is timed: a product for each operand set."""


class Launches:
    """All that `peakgemm.matmul` enqueues for a choice, the split of the operands included, past the call itself."""

    def __init__(self, choice: Choice, precision: str, arrays: Arrays, gpu: Gpu, peer: Peer) -> None:
        self._arrays, self._peer = arrays, peer
        self._bound = bound_for(arrays.problem, gpu, choice)
        self.facts: Row = {"workspace_bytes": self._bound.workspace_bytes, **path(precision, arrays)}

    def multiply(self, out: Any) -> None:
        launches(self._bound, [self._arrays.of(self._arrays.a[0], self._arrays.b[0], out)], self._peer)[0]()

    def works(self) -> list[Work]:
        return launches(self._bound, self._arrays.addresses(), self._peer)


class Prepared:
    """`peakgemm.matmul` into a given result, B being from `peakgemm.prepare`, which has run before the clock does."""

    def __init__(self, precision: str, arrays: Arrays) -> None:
        self._arrays, self._precision = arrays, precision
        self._b = [api.prepare(b, precision=precision) for b in arrays.b]
        self.facts: Row = path(precision, arrays)

    def multiply(self, out: Any) -> None:
        self._work(self._arrays.a[0], self._b[0], out)()

    def works(self) -> list[Work]:
        return [self._work(*each) for each in zip(self._arrays.a, self._b, self._arrays.c, strict=True)]

    def _work(self, a: Any, b: Any, out: Any) -> Work:
        def call() -> None:
            api.matmul(a, b, out=out, precision=self._precision)
        return call


def path(precision: str, arrays: Arrays) -> Row:
    """Which way the device took with the values of the first operand set; IEEE arithmetic has but one."""
    if precision == IEEE.precision:
        return {}
    a, b, c = arrays.a[0], arrays.b[0], arrays.c[0]
    plan = api.plan(a, b, out=c, precision=precision)
    plan.execute(a, b, out=c)
    return {"path": plan.last_path()}
