"""Compilation of all that is to be timed, in processes of their own, which do not find functions of a `__main__`."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, wait
from multiprocessing import get_context
from typing import Any

from lab.choice.stopwatch import Done
from peakgemm.errors import PeakgemmError
from peakgemm.kernels.recipe import Recipe

log_ = logging.getLogger("peakgemm")


def compile_ahead(recipes: Mapping[Any, Recipe], deadline: float, done: Done) -> set[Any]:
    """Fill the compile cache in parallel processes, until a moment of `time.monotonic`; the keys of what is there."""
    with ProcessPoolExecutor(os.cpu_count() or 1, get_context("spawn"), log_.setLevel, (logging.ERROR,)) as pool:
        jobs = {pool.submit(_compiles, recipe): key for key, recipe in recipes.items()}
        for job in jobs:
            job.add_done_callback(lambda job: done("compiled"))
        finished = wait(jobs, max(deadline - time.monotonic(), 0)).done
        pool.shutdown(wait=False, cancel_futures=True)
    return {jobs[job] for job in finished if job.result()}


def _compiles(recipe: Recipe) -> bool:
    try:
        recipe.make("cubin")
    except PeakgemmError:
        return False
    return True
