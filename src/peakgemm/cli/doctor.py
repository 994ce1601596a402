"""``peakgemm doctor``: what this machine has, what is missing, and the command that mends it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import PeakgemmError
from ..kernels import shipped
from ..problem import Problem
from ..runtime import cache, device
from ..runtime.device import Gpu
from ..runtime.nvrtc import TESTED, lacking, nvrtc_version
from ..sass.listing import find_nvdisasm
from ..selection.choose import choose
from ..selection.machine import kept_path, profile_of
from ..selection.machine import shipped as shipped_profile
from ..tools.bench import records
from ..tools.bench.peers import find_peer
from .console import table
from .measuring import keep_found

Row = tuple[str, str, str]
SQUARES = (1024, 2048, 4096, 8192)
REFERENCE = ("sm_90", 132, "NVIDIA H100 80GB HBM3")  # whose choices are told where there is no GPU
_HERE = re.compile(r"[,;]?( then| or)? see: peakgemm doctor$")  # how errors end; this is it


def command(json: Annotated[Path | None, typer.Option(help="Write what was found to this file.")] = None) -> None:
    """What is here, what is missing, and how to mend it."""
    records.check_writable(json)
    checks = (_compiler(), *_compilations(), _row("nvdisasm (SASS texts)", find_nvdisasm), *_gpus(),
             _row("cuBLAS (compare)", _peer), *_arrays(), *_caches())
    rows = [(what, there, _HERE.sub("", told)) for what, there, told in checks]
    table("", [("", "left")] * 3, rows, wrap=(2,))
    keep_found(json, [{"what": what, "there": there, "told": told} for what, there, told in rows])


def _row(what: str, look: Callable[[], str]) -> Row:
    try:
        return what, "yes", look()
    except PeakgemmError as error:
        return what, "no", str(error)


def _compiler() -> Row:
    """Which NVRTC is loaded, and whether every kernel has been compiled by that release."""
    what, tested = "NVRTC (compile)", [_numbers(release)[:2] for release in TESTED]
    try:
        release = nvrtc_version()
    except PeakgemmError as error:
        return what, "no", str(error)
    span = f"({', '.join('.'.join(map(str, one)) for one in tested)})"
    message = f"{release}, cuda.core {_version('cuda-core')}, cuda.bindings {_version('cuda-bindings')}; "
    if _numbers(release) in tested:
        return what, "yes", f"{message}among those tested {span}"
    if _numbers(release) < tested[0]:
        oldest, package = TESTED[0].rpartition(".")[0], "nvidia-cuda-nvrtc-cu12"
        return what, "old", (f"{message}older than any tested {span}: kernels may not compile, or be slow; run: pip "
                             f"install --no-deps '{package}>={oldest},<13' 'cuda-bindings>={oldest},<13'")
    if _numbers(release) > tested[-1]:
        return what, "new", (f"{message}newer than any tested {span}: what falls short is passed over, as told below; "
                             f"if that is much, run: pip install 'nvidia-cuda-nvrtc=={TESTED[-1]}'")
    return what, "yes", f"{message}not tested itself, between those that are {span}"


def _compilations() -> Iterator[Row]:
    """Whether choices pass over configurations for what this compiler made of them; nothing is compiled."""
    gpus = dict.fromkeys((gpu.arch, gpu.sm_count, gpu.name) for index in range(device.count())
                         if (gpu := device.find(index)) is not None)
    what, squares = "choices (compile)", ", ".join(map(str, SQUARES))
    for arch, sms, name in gpus or [REFERENCE]:
        short, unknown = list[str](), list[str]()
        try:
            why = lacking(arch)
        except PeakgemmError:
            return  # told above
        if why:
            yield what, "no", why
            continue
        for size in SQUARES:
            problem = Problem(size, size, size, size, size, size)
            choice = choose(problem, arch, sms, name)
            short += [f"{size}: {choice.kernel.name} {choice.config.label()} runs, not {one}"
                      for one in choice.passed_over]
            if choice.kernel.bare_loop and choice.kernel.recipe(choice.config, problem, arch).known_loop() is None:
                unknown.append(str(size))
        message = "; ".join(short) or f"no configuration is passed over for squares of {squares}"
        yield what, "no" if short else "yes", f"{name}: {message}" + (
            f"; not compiled here yet: {', '.join(unknown)} (peakgemm cache warm)" if unknown else "")


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))


def _gpus() -> Iterator[Row]:
    what = "GPU and driver (run)"
    reason = device.reason_without_gpu()
    if reason is not None:
        yield what, "no", reason
    for index in range(device.count()):
        try:
            gpu = device.require(index)
        except PeakgemmError as error:
            yield what, "no", str(error)
            continue
        facts = f"{index}: {gpu.name}, {gpu.arch}, {gpu.sm_count} SMs, driver for CUDA {gpu.driver}"
        yield (what, "old", f"{facts}; NVRTC is newer: update the driver, or run: pip install 'peakgemm[cu12]'"
               ) if _driver_is_older(gpu.driver) else (what, "yes", facts)
        yield _profile(gpu)


def _profile(gpu: Gpu) -> Row:
    """Whose numbers the cost models have for a GPU."""
    used = profile_of(gpu.arch, gpu.name)
    loss = used.residuals.get("held out", {}).get("ieee", {})
    origin = f"{used.name}, of {used.date}" + (
        f"; its choices lose {100 * loss['median']:.1f} % in the median of products held out, "
        f"{100 * loss['p90']:.1f} % at the 90th percentile" if loss else "")
    if used is not shipped_profile():
        return "profile (choose)", "yes", f"yours, {origin}: {kept_path(gpu.name)}"
    if used.architecture == gpu.arch:
        return "profile (choose)", "yes", f"shipped: {origin}"
    return "profile (choose)", "-", (f"{origin}: no {gpu.arch} was measured; fit one with: python -m lab.choice "
                                     "(docs/contributing/fit-a-gpu.md)")


def _driver_is_older(driver: str) -> bool:
    """Whether the driver's major version of CUDA is below NVRTC's: it loads no cubin of a newer one."""
    try:
        return int(driver.partition(".")[0]) < int(nvrtc_version().partition(".")[0])
    except PeakgemmError:
        return False


def _peer() -> str:
    device.require()
    return ", ".join(f"{name} {number}" for name, number in find_peer().versions().items())


def _arrays() -> Iterator[Row]:
    yield "NumPy (arrays)", "yes", _numpy()
    for module, told in (("torch", _torch), ("cupy", lambda m: m.__version__), ("jax", None)):
        what = f"{module} (arrays)"
        if find_spec(module) is None:
            yield what, "-", "not installed; needed only for its arrays"
        elif told is None:  # its import would claim most of the GPU's memory at the first look at a device
            plugin = next((p for p in ("jax-cuda13-plugin", "jax-cuda12-plugin") if _version(p) != "?"), None)
            yield what, "yes", f"{_version(module)}, " + (plugin or "CPU only; run: pip install 'jax[cuda13]'")
        else:
            try:
                yield what, "yes", told(import_module(module))
            except Exception as error:  # whatever a broken install raises
                yield what, "no", f"its import fails ({str(error).splitlines()[0] if str(error) else error!r})"


def _numpy() -> str:
    import numpy

    try:
        blas = numpy.show_config(mode="dicts")["Build Dependencies"]["blas"]
        return f"{numpy.__version__}, BLAS: {blas['name']} {blas['version']}"
    except (TypeError, KeyError):
        return str(numpy.__version__)


def _torch(torch: Any) -> str:
    cuda = torch.version.cuda
    return f"{torch.__version__}, " + (f"CUDA {cuda}" if cuda else "CPU only; see: https://pytorch.org/get-started")


def _caches() -> Iterator[Row]:
    indexes = [(path.stem, shipped.index(path)) for path in sorted(shipped.FOLDER.glob("*.cubins"))]
    ahead = ", ".join(f"{len(i.cubins)} kernels for {arch} by NVRTC {i.nvrtc}" for arch, i in indexes if i.cubins)
    yield "compiled ahead", "yes" if ahead else "-", ahead or "no kernel: each is compiled at its first use"
    place = cache.folder()
    problem = cache.trouble(place)
    if problem is None and not os.access(place, os.W_OK):
        problem = f"{place} is read-only: what is not in it is compiled anew by every process"
    count, size = cache.usage(place)
    yield "compile cache", "no" if problem else "yes", problem or f"{place}: {count} files, {size / 1e6:.1f} MB"
    count, size = cache.usage(cache.tuned_folder())
    yield "tuning entries", "yes" if count else "-", f"{cache.tuned_folder()}: {count} files"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "?"
