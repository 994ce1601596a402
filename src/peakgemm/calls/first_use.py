"""``PEAKGEMM_AUTOTUNE=1``: the first call of a product on device arrays searches for its kernel, as `Plan.autotune`."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING

from ..runtime import device
from . import hooks
from .request import REPRODUCIBLE

if TYPE_CHECKING:
    from ..problem import Problem
    from ..runtime.device import Gpu
    from ..selection.choose import Choice

log = logging.getLogger("peakgemm")
ALWAYS_TUNED = os.environ.get("PEAKGEMM_AUTOTUNE", "") not in ("", "0")
_searching = Lock()
_searched: set[tuple[str, str]] = set()  # devices' names and entries' keys: once a process, whatever comes of it
_failures: set[str] = set()  # messages that were logged


def tuned_at_first_use(problem: Problem, gpu: Gpu, choice: Choice, stream: int) -> Choice | None:
    """What runs ``problem``: if ``PEAKGEMM_AUTOTUNE=1``, the outcome of a search in the place of a heuristic choice.

    ``choice`` stays where an entry says that it is the fastest, where the search failed, for a reproducible product,
    and for a scheme that is named.

    Returns:
        None: not now, because ``stream`` captures a graph or another thread searches. That takes seconds, so the others
        do not wait: they run ``choice``, and ask again at their next call.
    """
    if not ALWAYS_TUNED or choice.source != "heuristic" or choice.precision == REPRODUCIBLE or problem.is_empty:
        return choice
    from ..kernels.validity import is_valid
    from ..runtime.memory import is_capturing
    from ..selection import tuned

    precision = "ieee" if choice.kernel.family.scheme is None else choice.precision
    key = gpu.name, tuned.key(problem, precision)
    if key in _searched or tuned.entry(*key) is not None:
        return choice
    with device.activated(gpu.index):
        if is_capturing(stream) or not _searching.acquire(blocking=False):
            return None
    try:
        if key in _searched:  # meanwhile, and ``choice`` was made before
            return None
        _searched.add(key)
        kernel, config = hooks.search(problem, gpu, precision)
    except Exception as error:
        if str(error) not in _failures:
            _failures.add(str(error))
            log.warning("peakgemm: PEAKGEMM_AUTOTUNE=1, but a search failed, and the model's choice runs: %s", error)
        return choice
    finally:
        _searching.release()
    if not is_valid(kernel, config, gpu.limits, problem):
        return choice
    return replace(choice, kernel=kernel, config=config, source="tuned",
                   reason="it was the fastest of those timed at the first use of this shape")
