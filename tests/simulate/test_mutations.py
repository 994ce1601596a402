"""Broken PTX has an answer: a run, a report of faults, or one message; never a traceback, and never no end."""

import random

import pytest

from mutations import mutated, outcome, seeds
from peakgemm.errors import InvalidValue
from seldom import exhaustive
from simulator_cases import threads

SEEDS = seeds()


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: seed.name)
def test_what_is_changed_runs(seed, tmp_path):
    assert outcome(seed.text, seed.options, tmp_path)[0] == 0


@pytest.mark.parametrize("part", [*range(12), *map(exhaustive, range(12, 36))])
def test_changed_texts_have_an_answer(part, tmp_path):
    for number in range(10):
        draw = random.Random(f"test {part} {number}")
        seed = draw.choice(SEEDS)
        code, said = outcome(mutated(seed.text, draw), seed.options, tmp_path)
        assert code in (0, 1) or (code == 2 and said.startswith("peakgemm: ")), said


@pytest.mark.parametrize("body", ["TOP: bra TOP;", "TOP: ld.volatile.global.u32 %r1, [%rd0]; setp.eq.u32 %p1, %r1, 0; "
                                  "@%p1 bra TOP; ret;", "TOP: call f; bra TOP;"])
@pytest.mark.parametrize("limit", [{"max_seconds": 0.2}, {"max_steps": 5000}])
def test_what_never_ends_is_stopped(body, limit):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("peakgemm.tools.simulator.machine.IDLE", 10**9)
        report, _ = threads(body, 32, before=".func f { ret; }", **limit)
    (fault,) = report.faults
    assert fault.kind == "never_ending" and f"more than {next(iter(limit))}" in report.stopped


def test_a_time_that_is_none():
    with pytest.raises(InvalidValue, match="max_seconds = 0 is not positive"):
        threads("", max_seconds=0)
