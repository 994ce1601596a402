"""Products under `peakgemm.torch.use` that are checked by chance, and who asked for them."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from math import isfinite
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from ..certificate import certify
from ..errors import WrongProduct

_OURS = tuple(f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parents[1]))
_log = logging.getLogger("peakgemm")
_random = Random()  # not the one that programs seed

Check = Callable[[Tensor, str], str]


def begin(call: Any, share: float) -> Check | None:
    """Called ahead of a product, a `torch_use._Call`: None, mostly, or what checks the result and says what is wrong,
    if anything is."""
    _, a, b, c, alpha, beta, out = call
    if _random.random() >= share or a.is_complex() or not (isfinite(alpha) and isfinite(beta)):
        return None
    if a.is_cuda and torch.cuda.is_current_stream_capturing():  # which nothing may wait for
        return None
    old = None if c is None or not beta else c.clone() if out is not None else c

    def check(result: Tensor, precision: str) -> str:
        certificate = certify(a, b, result, alpha=alpha, beta=beta if old is not None else None, c0=old,
                              precision=precision)
        return "" if certificate.ok else f"wrong product, {_asked_for()}: {certificate}"

    return check


def report(fault: str, how: str) -> None:
    """Raise, warn or log, as ``how`` says.

    Raises:
        WrongProduct: for ``"raise"``.
    """
    if how == "raise":
        raise WrongProduct(f"{fault}; run it again, and if it stays wrong report it with peakgemm doctor's output")
    if how == "warn":
        warnings.warn(fault, RuntimeWarning, stacklevel=2)
    else:
        _log.error("%s", fault)


def _asked_for() -> str:
    """The innermost line outside of torch and peakgemm, and the innermost torch module that runs, by its name in the
    outermost."""
    frame, line = sys._getframe(), ""
    modules = list[torch.nn.Module]()
    while frame is not None:
        this = frame.f_locals.get("self")
        if isinstance(this, torch.nn.Module):
            modules.append(this)
        if not line and not frame.f_code.co_filename.startswith(_OURS):
            line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    named = ""
    if modules:
        inner, outer = modules[0], modules[-1]
        named = f" in {type(inner).__name__}"
        with suppress(Exception):  # of a module that is being made, or whose own words fail
            named = named if list(inner.children()) else f" in {inner}"
            name = next(name for name, module in outer.named_modules() if module is inner)
            named += f", {name} of {type(outer).__name__}" if name else ""
    return f"{line or 'asked for by no line of Python, as in a backward pass'}{named}"
