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
from peakgemm.calls import launch
from peakgemm.calls.request import Request
from peakgemm.kernels.ffma.specialised import SPECIALISED, SpecialisedConfig
from peakgemm.problem import Problem
from peakgemm.selection.choose import choose

# The smallest tile of the kernel, cut whole and along K: many tiles, ragged edges and partial sums in small products.
TINY = SpecialisedConfig(32, 16, 8, 4, 4, stages=2, producers=32)
SPLIT = replace(TINY, split=2)


def run(case: api_cases.Case, bound: Any) -> tuple[api_cases.Arrays, Any, stand_in.StandIn]:
    """Run ``case`` with ``bound(problem, memory)`` in the place of kernels."""
    arrays, library = api_cases.make(case), stand_in.StandIn()
    canonical: list[Problem] = []

    def bound_for(problem: Problem, gpu: Any, choice: Any = None) -> Any:
        canonical.append(problem)
        return bound(problem, library.memory)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "bound_for", bound_for)
        patch.setattr(launch.device, "require", lambda index: stand_in.GPU)
        request = Request(arrays.a, arrays.b, arrays.c, arrays.out, case.alpha, case.beta, case.trans_a, case.trans_b)
        decided = launch.Decided(calls={})
        got = launch.on_device(library, 0, request, decided=decided).result
        arrays.check(got)
        bound_once = len(canonical)
        if arrays.out is None:  # the same again, from what was bound
            arrays.check(launch.on_device(library, 0, request, decided=decided).result)
            assert len(canonical) == bound_once
    assert arrays.out is None or got is arrays.out
    assert all(stand_in.merged_once(p.batch) for p in canonical)
    return arrays, got, library


@settings(max_examples=1500, deadline=None)
@given(st.data())
def test_interpreted(data: st.DataObject) -> None:
    case = api_cases.draw(lambda options: data.draw(st.sampled_from(options)), layouts=(*api_cases.LAYOUTS, "flipped"))
    arrays, got, _ = run(case, stand_in.Interpreted)
    arrays.check(got)


def test_calls_share_one_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases that are alike in all but one thing: what one of them is bound to is never another's."""
    rng, library, decided = random.Random(5), stand_in.StandIn(), launch.Decided(calls={})
    canonical: list[Problem] = []

    def bound_for(problem: Problem, gpu: Any, choice: Any = None) -> Any:
        canonical.append(problem)
        return stand_in.Interpreted(problem, library.memory)

    monkeypatch.setattr(launch, "bound_for", bound_for)
    monkeypatch.setattr(launch.device, "require", lambda index: stand_in.GPU)
    for _ in range(600):
        case = api_cases.draw(rng.choice, (1, 2, 3), layouts=(*api_cases.LAYOUTS, "flipped"))
        for seed in (1, 2):
            case.seed = seed
            arrays = api_cases.make(case)
            request = Request(arrays.a, arrays.b, arrays.c, arrays.out, case.alpha, case.beta, case.trans_a,
                              case.trans_b)
            arrays.check(launch.on_device(library, 0, request, decided=decided).result)
    assert len(canonical) < 700 and len(decided.calls) < 4000
    a, b, c, out = (np.full((8, 8), value, np.float32) for value in (1, 2, 3, 4))
    for c0, want in ((out, 20), (c, 19), (out, 35)):  # out is 4, then 19
        launch.on_device(library, 0, Request(a, b, c0, out, beta=1.0), decided=decided)
        assert (out == want).all()


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_simulated(data: st.DataObject) -> None:
    """The kernel itself, checked for races and accesses out of bounds as well."""
    sizes = (0, 1, 1, 2, 3, 5, 8, 15, 16, 17, 33)
    case = api_cases.draw(lambda options: data.draw(st.sampled_from(options)), sizes)
    config = data.draw(st.sampled_from([TINY, TINY, SPLIT]))
    arrays, got, _ = run(case, lambda problem, memory: stand_in.Simulated(SPECIALISED, config, problem, memory))
    arrays.check(got)


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_chosen(data: st.DataObject) -> None:
    """The kernel and configuration that a GPU would be given."""
    case = api_cases.draw(lambda options: data.draw(st.sampled_from(options)), (1, 2, 5, 17))

    def bound(problem: Problem, memory: Any) -> Any:
        choice = choose(problem, stand_in.GPU.arch, stand_in.GPU.sm_count)
        return stand_in.Simulated(choice.kernel, choice.config, problem, memory)

    arrays, got, _ = run(case, bound)
    arrays.check(got)
