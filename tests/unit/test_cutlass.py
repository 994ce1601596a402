"""CUTLASS as a peer: arrays as they lie, and what is missing; tests/gpu/test_cutlass_tiles.py has its products."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab.peers import cutlass_gemm
from lab.peers.cutlass_gemm import Operand
from peakgemm.errors import InvalidValue, MissingComponent


def test_where_headers_and_nvcc_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked for, or nothing; a message that says what to install."""
    monkeypatch.setattr(cutlass_gemm, "find_spec", lambda name: None)
    monkeypatch.setattr(cutlass_gemm, "_USUAL_HEADERS", tmp_path / "usual")
    monkeypatch.setattr(cutlass_gemm, "_USUAL_NVCC", tmp_path / "usual" / "nvcc")
    with pytest.raises(MissingComponent, match="run: pip install"):
        cutlass_gemm.find_headers({})
    with pytest.raises(MissingComponent, match="CUTLASS_PATH = /gone"):
        cutlass_gemm.find_headers({"CUTLASS_PATH": "/gone"})
    with pytest.raises(MissingComponent, match="install the CUDA toolkit"):
        cutlass_gemm.find_nvcc({"PATH": ""})
    (tmp_path / "include" / "cutlass").mkdir(parents=True)
    (tmp_path / "include" / "cutlass" / "version.h").write_text("")
    assert cutlass_gemm.find_headers({"CUTLASS_PATH": str(tmp_path)}) == tmp_path / "include"


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


