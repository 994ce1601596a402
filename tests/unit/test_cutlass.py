"""CUTLASS as a peer: where it is found, built and kept, which tile is chosen; nvcc and its libraries are stand-ins."""
# ruff: noqa: F401, F811  (fixtures of tests/support)

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench_cases import bound, on_host
from commands import here, run
from host_peer import GPU, HostPeer
from lab.peers import cutlass_gemm
from lab.peers.cutlass_gemm import LAYOUTS, Candidate, Clock, Library, Operand, Products
from peakgemm.errors import CompileFailed, InvalidValue, LaunchFailed, MissingComponent
from peakgemm.runtime import cache
from peakgemm.tools.bench import contenders, operands
from peakgemm.tools.bench.suites import Case, cases

STUB = Path(__file__).parents[1] / "support" / "fixtures" / "cutlass_on_host.c"
VERSION_H = "#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 2\n#define CUTLASS_PATCH 1\n"
NVCC = """#!/bin/sh
if [ "$1" = --version ]; then echo "Cuda compilation tools, release 13.0, V{version}"; exit 0; fi
echo "$*" >> {log}
{body}
"""
# The macros of the layout become the stand-in's; the target is what follows -o.
HOST = """for word in "$@"; do case "$word" in
  -DLAYOUT_A=RowMajor) a=0;; -DLAYOUT_A=ColumnMajor) a=1;; -DLAYOUT_B=RowMajor) b=0;; -DLAYOUT_B=ColumnMajor) b=1;;
esac; target=$word; done
exec cc -shared -fPIC -O1 -DA_T=$a -DB_T=$b {stub} -o "$target"
"""
needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without CUTLASS and nvcc, whatever this one has."""
    for name in ("CUTLASS_PATH", "CUDA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin" if shutil.which("nvcc", path="/usr/bin:/bin") is None else "")
    monkeypatch.setattr(cutlass_gemm, "find_spec", lambda name: None)
    monkeypatch.setattr(cutlass_gemm, "_USUAL_HEADERS", tmp_path / "usual" / "include")
    monkeypatch.setattr(cutlass_gemm, "_USUAL_NVCC", tmp_path / "usual" / "nvcc")
    monkeypatch.setenv("PEAKGEMM_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def headers_in(place: Path, text: str = VERSION_H) -> Path:
    (place / "cutlass").mkdir(parents=True)
    (place / "cutlass" / "version.h").write_text(text)
    return place


def nvcc_at(path: Path, body: str = HOST, version: str = "13.0.88") -> Path:
    """A compiler that writes its command lines to ``nvcc.log`` beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    body = body.replace("{stub}", str(STUB))
    path.write_text(NVCC.format(version=version, log=path.with_name("nvcc.log"), body=body))
    path.chmod(0o755)
    return path


def compiled(nvcc: Path) -> list[str]:
    """The command lines of its compilations."""
    log = nvcc.with_name("nvcc.log")
    return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def nvcc(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with both."""
    monkeypatch.setenv("CUTLASS_PATH", str(headers_in(nowhere / "checkout" / "include").parent))
    monkeypatch.setenv("CUDA_HOME", str(nowhere / "cuda"))
    return nvcc_at(nowhere / "cuda" / "bin" / "nvcc")


def test_where_headers_and_nvcc_are_looked_for(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingComponent, match=r"set CUTLASS_PATH .* run: pip install --no-deps nvidia-cutlass"):
        cutlass_gemm.find_headers()
    with pytest.raises(MissingComponent, match="install the CUDA toolkit"):
        cutlass_gemm.find_nvcc()
    usual, compiler = headers_in(nowhere / "usual" / "include"), nvcc_at(nowhere / "usual" / "nvcc")
    assert (cutlass_gemm.find_headers(), cutlass_gemm.find_nvcc()) == (usual, compiler)
    wheel = headers_in(nowhere / "site" / "cutlass_library" / "source" / "include")
    monkeypatch.setattr(cutlass_gemm, "find_spec", {"cutlass_library": SimpleNamespace(
        submodule_search_locations=[str(nowhere / "site" / "cutlass_library")])}.get)
    assert cutlass_gemm.find_headers() == wheel
    with pytest.raises(MissingComponent, match="CUTLASS_PATH = /gone"):
        cutlass_gemm.find_headers({"CUTLASS_PATH": "/gone"})  # what was asked for, or nothing
    home = nvcc_at(nowhere / "home" / "bin" / "nvcc")
    assert cutlass_gemm.find_nvcc({"PATH": str(compiler.parent), "CUDA_HOME": str(nowhere / "home")}) == home


@needs_cc
def test_built_once(nvcc: Path) -> None:
    tools = cutlass_gemm.find_tools()
    assert tools.versions() == {"cutlass": "4.2.1", "nvcc": "13.0.88"}
    built = cutlass_gemm.build(tools, "sm_90")
    lines = compiled(nvcc)
    assert sorted(built) == sorted(LAYOUTS) and len(lines) == 4
    assert all(f"-I{tools.headers}" in line and "-arch=sm_90 -DSM=90 " in line for line in lines)
    assert cutlass_gemm.build(tools, "sm_90") == built
    assert len(compiled(nvcc)) == 4
    next((cache.folder() / "entries").glob("*.json")).unlink()  # half an entry is none
    assert cutlass_gemm.build(tools, "sm_90") == built
    assert len(compiled(nvcc)) == 5


@needs_cc
def test_products(nvcc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every layout; the fastest tile is chosen by other arrays, once for a shape; a status is an error."""
    timed = []

    def milliseconds(clock: Any, run: Callable[[], None]) -> float:
        run()
        timed.append(run)
        return 1.0

    monkeypatch.setattr(Clock, "milliseconds", milliseconds)
    monkeypatch.setattr(cutlass_gemm, "AHEAD_BYTES", 64)
    peer = HostPeer()
    ours = Products(cutlass_gemm.find_tools(), GPU, peer)
    for case in cases("40x24x56,40x24x56:NT*3,40x24x56:TN,40x24x56:TT*3,1x30x20,30x1x20:TT,5x7x1:TN,1x1x1:NT"):
        arrays = operands.Arrays(case, GPU, peer)
        first, second, out = arrays.a[0], arrays.b[0], arrays.blank()
        work = ours.work(first, second, out)
        assert np.isnan(out).all(), "chosen by another array"
        work()
        assert np.allclose(out, np.matmul(first, second), atol=1e-4), case
        before = len(timed)
        ours.work(first, second, out)
        assert len(timed) == before
    peer.stream = SimpleNamespace(handle=8)  # one that the stand-in refuses
    (case,) = cases("16x8x4*2")
    arrays = operands.Arrays(case, GPU, peer)
    with pytest.raises(LaunchFailed, match=r"status 7.* at 16x8x4, batch 2"):
        ours.work(arrays.a[0], arrays.b[0], arrays.c[0])


def test_arrays_as_they_lie() -> None:
    def face(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> Any:
        return SimpleNamespace(__cuda_array_interface__={"data": (64, False), "shape": shape, "strides": strides})

    assert Operand.of(face((5, 6), None)) == Operand(64, 1, 5, 6, "N", 6, 0)
    assert Operand.of(face((5, 6), (4, 20))) == Operand(64, 1, 5, 6, "T", 5, 0)
    assert Operand.of(face((3, 5, 6), None)) == Operand(64, 3, 5, 6, "N", 6, 30)
    assert Operand.of(face((3, 5, 6), (400, 4, 32))) == Operand(64, 3, 5, 6, "T", 8, 100)
    assert Operand.of(face((5, 1), (28, 4))) == Operand(64, 1, 5, 1, "N", 7, 0)
    with pytest.raises(InvalidValue, match=r"contiguous rows or columns, not strides \[12, 2\]"):
        Operand.of(face((5, 6), (48, 8)))


