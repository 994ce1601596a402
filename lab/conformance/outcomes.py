"""What came of each test, and pytest's tests run for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import pytest

Around = Callable[[], AbstractContextManager[Any]]
PASSED, FAILED, NOT_OURS = "passed", "failed", "does not apply"


class Outcome(NamedTuple):
    """One test.

    Attributes:
        outcome: PASSED, FAILED or NOT_OURS, which means that peakgemm does not promise what is asked for.
        reason: why, unless it passed.
        calls: that peakgemm ran, by function. A test without any says nothing of it: it does not apply.
        samples: of a test of many, how many were compared.
    """

    suite: str
    test: str
    outcome: str
    reason: str = ""
    calls: dict[str, int] | None = None
    samples: str = ""


def judged(suite: str, test: str, reasons: Sequence[str], calls: dict[str, int], samples: str = "",
           without: str = "no call of it reaches peakgemm") -> Outcome:
    """Of a test that failed for ``reasons``, or of none; ``without``: the reason of one without calls."""
    if reasons:
        return Outcome(suite, test, FAILED, "; ".join(dict.fromkeys(reasons))[:1000], calls, samples)
    if not calls and without:
        return Outcome(suite, test, NOT_OURS, without, None, samples)
    return Outcome(suite, test, PASSED, "", calls, samples)


def beside(theirs: list[Outcome], ours: list[Outcome], why: str) -> list[Outcome]:
    """Ours: what failed for the library itself, too, does not apply."""
    reasons = {each.test: each.reason for each in theirs if each.outcome == FAILED}
    return [each._replace(outcome=NOT_OURS, reason=f"{why}: {reasons[each.test]}")
            if each.outcome == FAILED and each.test in reasons else each for each in ours]


class Recorder:
    """A plugin of pytest that collects outcomes.

    Args:
        calls: where functions are counted.
        without: why a test without calls does not apply; empty: it needs none.
        excused: patterns of tests, and why they do not apply although calls reach peakgemm.
        around: what a test runs in.
    """

    def __init__(self, suite: str, calls: Counter[str], without: str, excused: Mapping[str, str] | None = None,
                 around: Around = nullcontext) -> None:
        self.suite, self.calls, self.without, self.excused, self.around = suite, calls, without, excused or {}, around
        self.outcomes: list[Outcome] = []
        self._seen: set[str] = set()
        self._used: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: Any) -> Iterator[None]:
        """Count the calls of this test alone."""
        self.calls.clear()
        with self.around():
            return (yield)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """One outcome a test."""
        if report.when != "call" and report.passed:
            return
        test, calls = name_of(report.location), dict(self.calls)
        if report.skipped:
            told = report.longrepr
            reason = told[2] if isinstance(told, tuple) else getattr(report, "wasxfail", "skipped")
            self.outcomes.append(Outcome(self.suite, test, NOT_OURS, f"the suite skips it: {reason}"))
            return
        reasons = [] if report.passed else [_last_line(report)]
        for pattern in (pattern for pattern in self.excused if fnmatchcase(test, pattern)):
            self._seen.add(pattern)
            if reasons:
                self._used.add(pattern)
                why = f"{self.excused[pattern]} ({reasons[0]})"
                self.outcomes.append(Outcome(self.suite, test, NOT_OURS, why[:1000], calls))
                return
        self.outcomes.append(judged(self.suite, test, reasons, calls, without=self.without))

    def unused(self) -> list[Outcome]:
        """Failures: patterns of tests that passed are to be deleted."""
        return [Outcome(self.suite, pattern, FAILED, "listed as one that does not apply, and it passed")
                for pattern in self._seen - self._used]


def name_of(location: tuple[str, int | None, str]) -> str:
    """The module and the test of pytest's location."""
    return f"{Path(location[0]).stem}::{location[2]}"


def _last_line(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return " ".join((crash.message if crash else str(report.longrepr)).split())[:500]
