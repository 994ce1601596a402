"""CUTLASS's FP32 product without tensor cores for `contenders`: `cutlass_gemm.cu`, built by nvcc, the fastest of its
tiles for each shape.

One shared library for each layout, built once and kept in the compile cache under the same rules as kernels; what is
loaded is a copy of the very bytes that matched their digest.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import math
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache as once
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from peakgemm.errors import CompileFailed, InvalidValue, LaunchFailed, MissingComponent
from peakgemm.runtime import cache
from peakgemm.runtime.compile import in_parallel
from peakgemm.runtime.device import Gpu
from peakgemm.tools.bench.operands import address
from peakgemm.tools.bench.peers import Peer

log = logging.getLogger("peakgemm")
SOURCE = Path(__file__).with_suffix(".cu")
LAYOUTS = ("NN", "NT", "TN", "TT")  # of A and B; T: the columns are contiguous
_MAJOR = {"N": "RowMajor", "T": "ColumnMajor"}
_FLAGS = ("-shared", "-Xcompiler", "-fPIC", "-O3", "-std=c++17", "--expt-relaxed-constexpr")
_USUAL_HEADERS, _USUAL_NVCC = Path("/usr/local/cutlass/include"), Path("/usr/local/cuda/bin/nvcc")

SLICES = (2, 4, 8, 16, 32, 64, 128)  # of K
BLOCKS_PER_SM, LEAST_SLICE = 4, 64   # beyond these a split only costs
BURST_MS, MOST_CALLS, LONG_MS = 1.0, 20, 10.0
FINALISTS, ROUNDS = 3, 3
AHEAD_BYTES, AHEAD_COPIES = 128 << 20, 4


@dataclass(frozen=True)
class Tools:
    """What builds the libraries: a folder that holds ``cutlass/version.h``, a compiler, and their versions."""

    headers: Path
    nvcc: Path
    cutlass_version: str
    nvcc_version: str

    def versions(self) -> dict[str, str]:
        """Name and version of both."""
        return {"cutlass": self.cutlass_version, "nvcc": self.nvcc_version}


@dataclass(frozen=True)
class Candidate:
    """A tile by its number in the library, and the slices that K is cut into."""

    tile: int
    slices: int = 1


@dataclass(frozen=True)
class Operand:
    """An array ``(rows, columns)`` or ``(batch, rows, columns)``: strides in elements; ``layout`` T where the columns
    are contiguous, else N."""

    address: int
    batch: int
    rows: int
    columns: int
    layout: str
    lead: int
    step: int

    @classmethod
    def of(cls, x: Any) -> Operand:
        """Of a float32 array on the device.

        Raises:
            InvalidValue: neither its rows nor its columns are contiguous.
        """
        face = x.__cuda_array_interface__
        *lead, rows, columns = face["shape"]
        packed = (rows * columns, columns, 1)[-len(face["shape"]):]
        strides = packed if face.get("strides") is None else [step // 4 for step in face["strides"]]
        *steps, down, across = strides
        if across == 1 or columns == 1:
            layout, step = "N", down
        elif down == 1 or rows == 1:
            layout, step = "T", across
        else:
            raise InvalidValue(f"CUTLASS takes matrices with contiguous rows or columns, not strides {strides}")
        return cls(int(face["data"][0]), lead[0] if lead else 1, rows, columns, layout, step, steps[0] if steps else 0)

    def arguments(self) -> tuple[Any, ...]:
        """As the library's function takes them."""
        return ctypes.c_void_p(self.address), ctypes.c_longlong(self.lead), ctypes.c_longlong(self.step)


def find_headers(environ: Mapping[str, str] = os.environ) -> Path:
    """CUTLASS's headers: of ``CUTLASS_PATH``, else of the Python package ``cutlass_library``, else where they usually
    lie.

    Raises:
        MissingComponent: they are nowhere, or not where ``CUTLASS_PATH`` says.
    """
    chosen = environ.get("CUTLASS_PATH")
    if chosen:
        if not _holds_cutlass(Path(chosen, "include")):
            raise MissingComponent(f"CUTLASS_PATH = {chosen} holds no include/cutlass/version.h; set it to a checkout "
                                   "of CUTLASS")
        return Path(chosen, "include")
    spec = find_spec("cutlass_library")
    packaged = [Path(place, "source", "include") for place in (spec.submodule_search_locations if spec else None) or ()]
    for place in (*packaged, _USUAL_HEADERS):
        if _holds_cutlass(place):
            return place
    raise MissingComponent("CUTLASS's headers are not found; set CUTLASS_PATH to a checkout of CUTLASS, or run: pip "
                           "install --no-deps nvidia-cutlass")


def find_nvcc(environ: Mapping[str, str] = os.environ) -> Path:
    """nvcc: of ``CUDA_HOME``, else on ``PATH``, else where it usually lies, else of the wheel nvidia-cuda-nvcc.

    Raises:
        MissingComponent: it is nowhere.
    """
    for place in _compilers(environ):
        if place.is_file() and os.access(place, os.X_OK):
            return place
    raise MissingComponent("nvcc is not found; install the CUDA toolkit or set CUDA_HOME to it, or run: pip install "
                           "'cuda-toolkit[nvcc,cccl]==13.*'")


def find_tools() -> Tools:
    """Headers and compiler, with their versions; no GPU is needed.

    Raises:
        MissingComponent: see `find_headers` and `find_nvcc`; or one of them does not say its version.
    """
    headers, nvcc = find_headers(), find_nvcc()
    text = (headers / "cutlass" / "version.h").read_text(encoding="utf-8", errors="replace")
    parts = [re.search(rf"#define\s+CUTLASS_{part}\s+(\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")]
    if None in parts:
        raise MissingComponent(f"{headers}/cutlass/version.h names no version; set CUTLASS_PATH to another checkout")
    try:
        done = subprocess.run([str(nvcc), "--version"], capture_output=True, text=True, errors="replace", check=False)
        said = re.search(r"V(\d+\.\d+\.\d+)", done.stdout)
    except OSError as error:
        raise MissingComponent(f"{nvcc} cannot be run ({error}); set CUDA_HOME to another toolkit") from None
    if said is None:
        raise MissingComponent(f"{nvcc} --version names no version; set CUDA_HOME to another toolkit")
    return Tools(headers, nvcc, ".".join(part[1] for part in parts if part), said[1])


def build(tools: Tools, arch: str) -> dict[str, bytes]:
    """The shared library of each layout for ``arch`` (``sm_90``): from the cache, else compiled, all at once.

    Raises:
        CompileFailed: nvcc refuses the source; the message has the end of its log.
    """
    found = {layout: hit[0] for layout in LAYOUTS if (hit := cache.load(key(tools, arch, layout))) is not None}
    absent = [layout for layout in LAYOUTS if layout not in found]
    if absent:
        place = f"cached in {cache.folder()}" if cache.usable() else "there is no cache to keep it"
        log.warning("peakgemm: compiling %s for %s by nvcc, up to a minute (first use; %s) ...",
                    SOURCE.name, arch, place)
        found |= zip(absent, in_parallel(partial(_compiled, tools, arch), absent), strict=True)
    return found


def key(tools: Tools, arch: str, layout: str) -> bytes:
    """Under which a library lies in the cache: a digest of all that it is made from."""
    made_from = [SOURCE.read_text(encoding="utf-8"), str(tools.headers), tools.versions(), arch, layout, _FLAGS]
    return hashlib.sha256(json.dumps(made_from).encode()).digest()


@once  # CUTLASS's note of what it has set up is the process's, its kernels are each copy's
def load(code: bytes) -> Library:
    """The shared library in ``code``.

    Raises:
        MissingComponent: it cannot be loaded.
    """
    return Library(code)


class Library:
    """The functions of a layout's shared library; see `load`."""

    def __init__(self, code: bytes) -> None:
        # A file with a name of its own: dlopen takes one that it knows for the one that it has. It may go once loaded.
        with tempfile.TemporaryDirectory(prefix="peakgemm") as folder:
            path = Path(folder, "cutlass.so")
            path.write_bytes(code)
            try:
                found = ctypes.CDLL(str(path))
            except OSError as error:
                raise MissingComponent(f"CUTLASS's library cannot be loaded ({error}); set TMPDIR to a folder that "
                                       "programs may lie in, or run: peakgemm cache clear") from None
        i, wide, pointer = ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p
        self.count = int(found.tile_count())
        self._blocks, self._workspace, self._gemm = found.tile_blocks, found.gemm_workspace, found.gemm
        self._blocks.argtypes, self._blocks.restype = [i] * 3, wide
        self._workspace.argtypes, self._workspace.restype = [i] * 5, wide
        operand: list[Any] = [pointer, wide, wide]
        self._gemm.argtypes, self._gemm.restype = [*[i] * 6, *operand * 3, pointer, pointer], i
        for name in ("tile_name", "status_name"):
            function = getattr(found, name)
            function.argtypes, function.restype = [i], ctypes.c_char_p
        self._tile_name, self._status_name = found.tile_name, found.status_name

    def name(self, candidate: Candidate) -> str:
        """``128x128x8, 4 stages``, and the slices of K where there are several."""
        said = str(self._tile_name(candidate.tile).decode())
        return said if candidate.slices == 1 else f"{said}, {candidate.slices} slices of K"

    def candidates(self, m: int, n: int, k: int, batch: int, sm_count: int) -> Iterator[Candidate]:
        """Every tile, and its splits of K where a single product has too few blocks for the SMs."""
        for tile in range(self.count):
            yield Candidate(tile)
            blocks = self._blocks(tile, m, n)
            for slices in SLICES if batch == 1 else ():
                if blocks * slices <= BLOCKS_PER_SM * sm_count and k >= slices * LEAST_SLICE:
                    yield Candidate(tile, slices)

    def workspace(self, candidate: Candidate, m: int, n: int, k: int) -> int:
        """Bytes that a product keeps on the device."""
        return int(self._workspace(candidate.tile, m, n, k, candidate.slices)) if candidate.slices > 1 else 0

    def bind(self, candidate: Candidate, a: Operand, b: Operand, out: Operand, scratch: Any, stream: int
             ) -> Callable[[], None]:
        """What enqueues ``out = a b``; it raises `LaunchFailed` where CUTLASS does not answer with success."""
        sizes = candidate.tile, a.rows, b.columns, a.columns, a.batch, candidate.slices
        workspace = None if scratch is None else address(scratch)
        arguments = (*map(ctypes.c_int, sizes), *a.arguments(), *b.arguments(), *out.arguments(),
                     ctypes.c_void_p(workspace), ctypes.c_void_p(stream))

        def run() -> None:
            status = self._gemm(*arguments)
            if status:
                raise LaunchFailed(f"CUTLASS {self.name(candidate)}: {self._status_name(status).decode()} (status "
                                   f"{status}) at {a.rows}x{b.columns}x{a.columns}, batch {a.batch}")
        return run


class Products:
    """Products by CUTLASS on a peer's stream, each by the candidate that was fastest at its first `work`."""

    def __init__(self, tools: Tools, gpu: Gpu, peer: Peer) -> None:
        self._gpu, self._peer = gpu, peer
        self._libraries = {layout: load(code) for layout, code in build(tools, gpu.arch).items()}
        self._chosen: dict[tuple[Any, ...], tuple[Candidate, Any]] = {}

    def work(self, a: Any, b: Any, out: Any) -> Callable[[], None]:
        """What enqueues ``out = a b``: ``a (..., M, K)`` and ``b (..., K, N)`` with contiguous rows or columns, ``out``
        packed, with one batch dimension or none.

        At a shape's and layout's first time the candidates are timed, into another array than ``out``.

        Raises:
            InvalidValue: see `Operand.of`.
            LaunchFailed: no tile can multiply them.
        """
        first, second, result = Operand.of(a), Operand.of(b), Operand.of(out)
        library = self._libraries[first.layout + second.layout]
        shape = first.layout + second.layout, first.rows, second.columns, first.columns, first.batch
        if shape not in self._chosen:
            self._chosen[shape] = self._fastest(library, first, second)
        candidate, scratch = self._chosen[shape]
        run = library.bind(candidate, first, second, result, scratch, int(self._peer.stream.handle))

        def enqueue(keep: Any = (a, b, out, scratch)) -> None:
            run()
        return enqueue

    def _fastest(self, library: Library, a: Operand, b: Operand) -> tuple[Candidate, Any]:
        m, n, k = a.rows, b.columns, a.columns
        room = self._peer.full(a.batch * m, n, math.nan)
        out = Operand(address(room), a.batch, m, n, "N", n, m * n)
        clock, stream = Clock(self._peer), int(self._peer.stream.handle)
        runs, scratches, refusals = {}, {}, []
        for each in library.candidates(m, n, k, a.batch, self._gpu.sm_count):
            size = library.workspace(each, m, n, k)
            scratches[each] = self._peer.full(1, -(-size // 4), 0.0) if size else None
            runs[each] = library.bind(each, a, b, out, scratches[each], stream)
        times = {}
        for each, run in runs.items():
            try:
                times[each] = clock.milliseconds(run)
            except LaunchFailed as error:  # too much shared memory for this GPU, or too many blocks
                refusals.append(error)
        if not times:
            raise refusals[0]
        last = sorted(times, key=times.__getitem__)[:FINALISTS]
        again = [[clock.milliseconds(runs[each]) for each in last] for _ in range(ROUNDS)]
        best = min(zip(last, zip(*again, strict=True), strict=True), key=lambda pair: median(pair[1]))[0]
        log.info("peakgemm: CUTLASS at %dx%dx%d, batch %d: %s", m, n, k, a.batch, library.name(best))
        return best, scratches[best]


class Clock:
    """Milliseconds of a call, to choose by; the figures are the timer's."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._from, self._to = (peer.full(1, AHEAD_BYTES // 4, 0.0) for _ in range(2))

    def milliseconds(self, run: Callable[[], None]) -> float:
        """The fastest of three bursts, over their calls.

        Raises:
            LaunchFailed: the first call was refused.
        """
        run()  # loads the kernel
        rough = self._burst(run, 1)
        if rough > LONG_MS:
            return min(rough, self._burst(run, 1))
        calls = min(MOST_CALLS, math.ceil(BURST_MS / rough))
        return min(self._burst(run, calls) for _ in range(3)) / calls

    def _burst(self, run: Callable[[], None], calls: int) -> float:
        for _ in range(AHEAD_COPIES):  # while the GPU copies, the host gets ahead: its time is not in the burst's
            self._peer.copy(self._from, self._to)
        start = self._peer.record()
        for _ in range(calls):
            run()
        end = self._peer.record()
        end.sync()
        return max(float(end - start), 1e-6)


def _holds_cutlass(place: Path) -> bool:
    return (place / "cutlass" / "version.h").is_file()


def _compilers(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("CUDA_HOME"):
        yield Path(environ["CUDA_HOME"], "bin", "nvcc")
    if found := shutil.which("nvcc", path=environ.get("PATH", "")):
        yield Path(found)
    yield _USUAL_NVCC
    spec = find_spec("nvidia")
    for place in (spec.submodule_search_locations if spec else None) or ():
        yield Path(place, "cu13", "bin", "nvcc")


def _compiled(tools: Tools, arch: str, layout: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="peakgemm") as folder:
        target = Path(folder, "cutlass.so")
        # The wheels' libraries lie in lib, where nvcc does not look.
        command = [str(tools.nvcc), *_FLAGS, f"-arch={arch}", f"-DSM={arch.removeprefix('sm_')}",
                   *(f"-DLAYOUT_{name}={_MAJOR[major]}" for name, major in zip("AB", layout, strict=True)),
                   f"-I{tools.headers}", f"-L{tools.nvcc.resolve().parents[1] / 'lib'}", str(SOURCE), "-o", str(target)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        except OSError as error:
            raise CompileFailed(f"{tools.nvcc} cannot be run ({error}); set CUDA_HOME to another toolkit") from None
        if done.returncode or not target.is_file():
            tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-12:])
            raise CompileFailed(f"{tools.nvcc} refuses {SOURCE.name} for {arch}, layout {layout}, with CUTLASS "
                                f"{tools.cutlass_version} in {tools.headers} (exit code {done.returncode}):\n{tail}")
        code = target.read_bytes()
    cache.save(key(tools, arch, layout), code, {"layout": layout, **tools.versions()})
    return code
