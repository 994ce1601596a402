"""The array API's test suite, on a namespace whose products and linear algebra of float32 are peakgemm's."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import peakgemm as pg

from .outcomes import NOT_OURS, Around, Outcome, Recorder, name_of

NAMESPACE = "peakgemm_namespace"
# Not to be drawn. The suite needs a default integer and a complex dtype.
OTHERS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "float64", "complex128")
NAMES = ("cholesky", "solve", "inv", "det", "slogdet", "qr")
OURS = " or ".join(("matmul", *NAMES))
calls: Counter[str] = Counter()


def namespace(base: str, on_gpu: bool) -> ModuleType:
    """``base`` as `array_api_compat` shows it, with our functions; registered as `NAMESPACE`."""
    under = import_module(f"array_api_compat.{base}")
    if base == "torch" and on_gpu:
        import torch

        torch.set_default_device("cuda")

    def ours(theirs: Any, function: Callable[..., Any]) -> Any:
        @wraps(function)  # whose signature is compared with the standard's
        def call(x: Any, *args: Any, **kwargs: Any) -> Any:
            if any(y.dtype != under.float32 for y in (x, *args)):
                return theirs(x, *args, **kwargs)
            calls[function.__name__] += 1
            return function(x, *args, **kwargs)
        return call

    module, linalg = ModuleType(NAMESPACE), ModuleType(f"{NAMESPACE}.linalg")
    for copy, original in ((linalg, under.linalg), (module, under)):
        vars(copy).update({name: getattr(original, name) for name in dir(original) if not name.startswith("__")})
    module.__array_api_version__ = under.__array_api_version__
    module.linalg = linalg
    for name in NAMES:
        setattr(linalg, name, ours(getattr(under.linalg, name), getattr(pg.linalg, name)))
    module.matmul = linalg.matmul = ours(under.matmul, pg.matmul)
    sys.modules[NAMESPACE], sys.modules[linalg.__name__] = module, linalg
    return module


class Selected(Recorder):
    """Tests of functions that peakgemm does not have are named, and not run."""

    def pytest_deselected(self, items: list[Any]) -> None:
        """They do not apply."""
        self.outcomes += [Outcome(self.suite, name_of(item.location), NOT_OURS, self.without)
                          for item in items if self.without]


def run(folder: Path, base: str, on_gpu: bool, around: Around = nullcontext) -> list[Outcome]:
    """The tests in ``folder``, a checkout with its submodule. In a process of its own: the environment tells them."""
    namespace(base, on_gpu)
    os.environ |= {"ARRAY_API_TESTS_MODULE": NAMESPACE, "ARRAY_API_TESTS_SKIP_DTYPES": ",".join(OTHERS)}
    tests, found = folder / "array_api_tests", []
    for module, which, without in (("test_linalg.py", OURS, "peakgemm has no such function"),
                                   ("test_signatures.py", f"({OURS}) and not __matmul__", "")):
        recorder = Selected(f"array-api-tests, {base}", calls, without, around=around)
        pytest.main([str(tests / module), "-k", which, "-q", "-p", "no:cacheprovider", "--max-examples", "100",
                     "--derandomize", "--disable-deadline", "--rootdir", str(folder), "-c", str(folder / "pytest.ini")],
                    plugins=[recorder])
        found += recorder.outcomes
    return found
