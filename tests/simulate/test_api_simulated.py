"""Drawn products through the boundary and `on_device`, as for arrays on a GPU; kernels interpreted, or simulated."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import api_cases
import stand_in
from library_case import SMALL
from peakgemm.calls import launch
from peakgemm.calls.request import Request
from peakgemm.kernels.ffma.specialised import SPECIALISED
from peakgemm.problem import Problem
from peakgemm.selection.choose import choose

# The smallest tile of the kernel, cut whole and along K: many tiles, ragged edges and partial sums in small products.
TINY = replace(SMALL, bn=16, tn=4, stages=2, raster=1)
LAYOUTS = (*api_cases.LAYOUTS, "flipped")


class Calls:
    """`on_device` with ``bound(problem, memory)`` in the place of kernels; what was bound, in order."""

    def __init__(self, patch: pytest.MonkeyPatch, bound: Any) -> None:
        self.library, self.decided, self.canonical = stand_in.StandIn(), launch.Decided(calls={}), list[Problem]()

        def bound_for(problem: Problem, gpu: Any, choice: Any = None) -> Any:
            assert stand_in.merged_once(problem.batch)
            self.canonical.append(problem)
            return bound(problem, self.library.memory)

        patch.setattr(launch, "bound_for", bound_for)
        patch.setattr(launch.device, "require", lambda index: stand_in.GPU)

    def run(self, request: Request) -> Any:
        return launch.on_device(self.library, 0, request, decided=self.decided).result

    def check(self, case: api_cases.Case) -> None:
        arrays = api_cases.make(case)
        request = Request(arrays.a, arrays.b, arrays.c, arrays.out, case.alpha, case.beta, case.trans_a, case.trans_b)
        got, bound = self.run(request), len(self.canonical)
        arrays.check(got)
        assert arrays.out is None or got is arrays.out
        if arrays.out is None:  # the same again, from what was bound
            arrays.check(self.run(request))
            assert len(self.canonical) == bound


def draw(data: st.DataObject, *sizes: Any, **options: Any) -> api_cases.Case:
    return api_cases.draw(lambda of: data.draw(st.sampled_from(of)), *sizes, **options)


@pytest.mark.exhaustive
@settings(max_examples=1500, deadline=None)
@given(st.data())
def test_interpreted(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        Calls(patch, stand_in.Interpreted).check(draw(data, layouts=LAYOUTS))


def test_calls_share_one_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases that are alike in all but one thing: what one of them is bound to is never another's."""
    rng, calls = random.Random(5), Calls(monkeypatch, stand_in.Interpreted)
    for _ in range(600):
        case = api_cases.draw(rng.choice, (1, 2, 3), layouts=LAYOUTS)
        for case.seed in (1, 2):
            calls.check(case)
    assert len(calls.canonical) < 700 and len(calls.decided.calls) < 4000
    a, b, c, out = (np.full((8, 8), value, np.float32) for value in (1, 2, 3, 4))
    for c0, want in ((out, 20), (c, 19), (out, 35)):  # out is 4, then 19
        calls.run(Request(a, b, c0, out, beta=1.0))
        assert (out == want).all()


@settings(max_examples=24, deadline=None)
@given(st.data())
def test_simulated(data: st.DataObject) -> None:
    """The kernel itself, checked for races and accesses out of bounds as well."""
    config = data.draw(st.sampled_from([TINY, TINY, replace(TINY, split=2)]))
    with pytest.MonkeyPatch.context() as patch:
        calls = Calls(patch, lambda problem, memory: stand_in.Simulated(SPECIALISED, config, problem, memory))
        calls.check(draw(data, (0, 1, 1, 2, 3, 5, 8, 15, 16, 17, 33)))


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_chosen(data: st.DataObject) -> None:
    """The kernel and configuration that a GPU would be given."""
    def bound(problem: Problem, memory: Any) -> Any:
        choice = choose(problem, stand_in.GPU.arch, stand_in.GPU.sm_count)
        return stand_in.Simulated(choice.kernel, choice.config, problem, memory)

    with pytest.MonkeyPatch.context() as patch:
        Calls(patch, bound).check(draw(data, (1, 2, 5, 17)))
