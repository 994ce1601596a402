"""The suites, each for a process of its own: what they patch holds to its end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path

from peakgemm.cli.console import out

from .outcomes import Outcome

PARTS = 4  # of torch's OpInfos, beside each other: most of the time is the host's


def jobs(tests: Path | None, precisions: list[str], on_gpu: bool,
         simulate: bool) -> Iterator[tuple[str, Callable[[], list[Outcome]]]]:
    """The suites that can be run here, by name."""
    def there(*packages: str) -> bool:
        missing = [package for package in packages if not find_spec(package)]
        if missing:
            out.print(f"Not installed: {', '.join(missing)}", markup=False)
        return not missing

    if there("torch", "expecttest"):
        for precision, part in product(precisions, range(PARTS)):
            yield f"torch, {precision}, {part + 1} of {PARTS}", partial(torch_suite, precision, part, on_gpu, simulate)
        if tests and (tests / "test_linalg.py").exists() and there("pytest"):
            for precision in precisions:
                yield f"torch-file, {precision}", partial(torch_file_suite, tests / "test_linalg.py", precision, on_gpu,
                                                          simulate)
    if tests and there("pytest", "hypothesis", "ndindex", "array_api_compat", "pytest_jsonreport"):
        for base in ("numpy", *(["torch", "cupy"] if not simulate else [])):
            if (base != "cupy" or on_gpu) and there(base):
                yield f"array-api, {base}", partial(array_api_suite, tests / "array-api-tests", base, on_gpu, simulate)
    if there("pytest", "scipy"):
        yield "scipy", partial(scipy_suite, simulate)


def torch_suite(precision: str, part: int, on_gpu: bool, simulate: bool) -> list[Outcome]:
    from . import torch_opinfo

    with simulated_torch() if simulate else nullcontext():
        return list(torch_opinfo.run(precision, on_gpu, products=not simulate, part=part, parts=PARTS))


def torch_file_suite(file: Path, precision: str, on_gpu: bool, simulate: bool) -> list[Outcome]:
    from . import torch_file

    with simulated_torch() if simulate else nullcontext():
        return torch_file.run(file, precision, on_gpu, products=not simulate)


def array_api_suite(folder: Path, base: str, on_gpu: bool, simulate: bool) -> list[Outcome]:
    from . import array_api

    return array_api.run(folder, base, on_gpu, simulated_numpy if simulate else nullcontext)


def scipy_suite(simulate: bool) -> list[Outcome]:
    from . import scipy_linalg

    return scipy_linalg.run(simulated_numpy if simulate else nullcontext)


@contextmanager
def simulated_torch() -> Iterator[None]:
    """CPU tensors as a GPU's."""
    import pytest

    _find_support()
    from linalg_torch import stand_for_gpu

    with pytest.MonkeyPatch.context() as patch:
        stand_for_gpu(patch)
        yield


@contextmanager
def simulated_numpy() -> Iterator[None]:
    """NumPy's arrays as a GPU's."""
    import pytest

    _find_support()
    from linalg_case import Interpreter

    with pytest.MonkeyPatch.context() as patch:
        Interpreter(patch)
        yield


def _find_support() -> None:
    folder = str(Path(__file__).parents[2] / "tests" / "support")
    if folder not in sys.path:
        sys.path.insert(0, folder)
