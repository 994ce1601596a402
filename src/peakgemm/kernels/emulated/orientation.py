"""What a tensor-core kernel is asked for: C or, so that it is op(B) whose rows it splits in registers, C^T."""

from __future__ import annotations

from functools import lru_cache

from ...problem import Config, Problem

_turned = lru_cache(maxsize=16)(Problem.turned)  # a model asks for each of its candidates


def oriented(config: Config, problem: Problem) -> Problem:
    """The problem as a kernel with ``config`` sees it."""
    return _turned(problem) if config.trans_c else problem
