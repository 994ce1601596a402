"""Source assembly, compilation without a driver, and the cache on disk."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from peakgemm.errors import CompileFailed, InvalidValue, MissingComponent
from peakgemm.runtime import cache
from peakgemm.runtime.architectures import ARCHITECTURES, architecture
from peakgemm.runtime.compile import compile_source, in_parallel
from peakgemm.runtime.source import assemble, essence
from scale import SCALE, files, scale

TWO = """
extern "C" __global__ void one(int* p) { *p = 1; }
extern "C" __global__ void two(float* p) {
  __shared__ float s[256];
  s[threadIdx.x] = p[threadIdx.x];
  __syncthreads();
  p[threadIdx.x] = s[threadIdx.x ^ 1];
}
"""


# Source assembly


def test_assemble_keeps_lines(tmp_path: Path) -> None:
    (tmp_path / "part.cuh").write_text("int part;\n")
    kernel = tmp_path / "kernel.cu"
    kernel.write_text('int first;\n#include "part.cuh"\nint last;\n')
    assert assemble(kernel).splitlines() == [
        f'#line 1 "{kernel}"', "int first;", f'#line 1 "{tmp_path / "part.cuh"}"', "int part;",
        f'#line 3 "{kernel}"', "int last;"]


def test_assemble_includes_once(tmp_path: Path) -> None:
    (tmp_path / "deep.cuh").write_text("int deep;\n")
    (tmp_path / "part.cuh").write_text('#include "deep.cuh"\nint part;\n')
    (tmp_path / "kernel.cu").write_text('#include "deep.cuh"\n#include "part.cuh"\n#include "part.cuh"\nint last;\n')
    text = assemble(tmp_path / "kernel.cu")
    assert (text.count("int deep;"), text.count("int part;"), text.count("#include")) == (1, 1, 0)
    assert text.index("int deep;") < text.index("int part;") < text.index("int last;")


def test_assemble_finds_the_packages_headers(tmp_path: Path) -> None:
    (tmp_path / "kernel.cu").write_text('#include "include/mma/fragment.cuh"\n')
    assert '#line 1 "include/mma/fragment.cuh"' in assemble(tmp_path / "kernel.cu")


def test_missing_include_names_file_and_line(tmp_path: Path) -> None:
    kernel = tmp_path / "kernel.cu"
    kernel.write_text('int first;\n#include "gone.cuh"\n')
    with pytest.raises(CompileFailed, match=rf'{kernel}\(2\): .*"gone.cuh"'):
        compile_source(assemble(kernel), "k", "sm_90")


def test_missing_source(tmp_path: Path) -> None:
    with pytest.raises(MissingComponent, match=r"gone\.cu cannot be read \(No such file"):
        assemble(tmp_path / "gone.cu")


@pytest.mark.parametrize(("text", "other"), [
    ("int a; // one", "int a;"), ("int a; /* one */ int b;", "int a;  int b;"), ("/* a\n */ int b;", "\nint b;"),
    ("// a \\\nint b;\nint c;", "\n\nint c;"), ("\tint  a;  ", "int a;"), ("int a; /* // */", "int a;"),
    ("int a; // /* */", "int a;"),
    ("int a = 1'000; // it's", "int a = 1'000;"), ("int a = 0xf'f'f; /* ' */", "int a = 0xf'f'f;"),
    ("char a = '\"'; // \"", "char a = '\"';"), ("char a = '\\''; // '", "char a = '\\'';"),
    ("auto a = u8'a'; // '", "auto a = u8'a';"), ('auto a = "\\\\"; // "', 'auto a = "\\\\";')])
def test_comments_and_white_space_are_no_code(text: str, other: str) -> None:
    assert essence(text) == essence(other)
    assert "".join(essence(text).split()).startswith("".join(other.split()))


@pytest.mark.parametrize(("text", "other"), [
    ('auto a = "//b";', 'auto a = "//c";'), ('auto a = "b /* */";', 'auto a = "b ";'), ('a = "b  c";', 'a = "b c";'),
    ('a = "\\"//b";', 'a = "\\"//c";'), ('a = R"(" // b)";', 'a = R"(" // c)";'),
    ("a = '/'; b /'*';", "a = '/'; c /'*';"),
    ('a = R"x()" /* b */)x";', 'a = R"x()" /* c */)x";'), ("int ab;", "int a b;"), ("a = b / c;", "a = b;"),
    ("int a;\nint b;", "int a; int b;"), ("// a\nint b;", "int b;"), ("a = 1'0; b", "a = 1'0; c"),
    ("/**/ a", "/**/ b")])
def test_code_literals_and_lines_are(text: str, other: str) -> None:
    assert essence(text) != essence(other)


# Compilation


def test_cubin() -> None:
    code = scale()
    assert (code.entry, code.arch, code.kind) == ("scale", "sm_90", "cubin")
    assert code.code.startswith(b"\x7fELF")
    assert 1 <= code.registers <= 32
    assert (code.spill_bytes, code.stack_bytes, code.static_shared) == (0, 0, 0)


def test_ptx_needs_no_driver(cold: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import driver

    def absent(*args: object) -> None:
        raise RuntimeError("no driver")

    for call in ("cuInit", "cuDriverGetVersion"):
        monkeypatch.setattr(driver, call, absent)
    code = scale(kind="ptx")
    assert ".target sm_90" in code.text
    assert ".entry scale(" in code.text
    assert (code.registers, code.spill_bytes) == (None, None)


def test_compile_error_carries_the_log(tmp_path: Path) -> None:
    (tmp_path / "bad.cuh").write_text("int fine;\n\nint broken = nonsense;\n")
    (tmp_path / "kernel.cu").write_text('#include "bad.cuh"\n' + SCALE)
    for kind in ("cubin", "ptx"):
        with pytest.raises(CompileFailed) as error:
            compile_source(assemble(tmp_path / "kernel.cu"), "scale", "sm_90", {"FACTOR": 1}, kind, name="kernel.cu")
        assert str(error.value).startswith("kernel.cu does not compile for sm_90:\n")
        assert f"{tmp_path / 'bad.cuh'}(3): error: identifier \"nonsense\" is undefined" in str(error.value)


@pytest.mark.parametrize("kind", ["cubin", "ptx"])
def test_wrong_entry(cold: Path, kind: str) -> None:
    scale(kind=kind)  # in the cache under its own entry
    with pytest.raises(CompileFailed, match="holds no kernel 'shrink' for sm_90"):
        compile_source(SCALE, "shrink", "sm_90", {"FACTOR": 3}, kind)


def test_unknown_architecture_lists_valid_ones() -> None:
    with pytest.raises(InvalidValue) as error:
        scale(arch="sm_42")
    assert str(error.value) == f"unknown architecture 'sm_42'; valid ones: {', '.join(ARCHITECTURES)}"
    assert "sm_75, sm_80, sm_86, sm_89, sm_90, sm_100, sm_120" in str(error.value)


def test_family_suffix() -> None:
    assert architecture("sm_90a") is architecture("sm_90")
    assert scale(arch="sm_90a").arch == "sm_90a"


def test_volta_is_past(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peakgemm.runtime.nvrtc.nvrtc_version", lambda: "13.1")
    with pytest.raises(MissingComponent, match=r"sm_70: NVRTC 13 has dropped it \(oldest: sm_75\).*peakgemm\[cu12\]"):
        scale(arch="sm_70")


def test_nvrtc_missing(cold: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise RuntimeError("libnvrtc.so.13 not found\nsearched everywhere")

    monkeypatch.setattr("cuda.bindings.nvrtc.nvrtcVersion", absent)
    with pytest.raises(MissingComponent) as error:
        scale()
    assert "NVRTC cannot be loaded (libnvrtc.so.13 not found)" in str(error.value)
    assert "pip install nvidia-cuda-nvrtc" in str(error.value)
    assert "peakgemm doctor" in str(error.value)
    assert "\n" not in str(error.value)


def test_in_parallel_keeps_the_order() -> None:
    assert in_parallel(lambda x: x * x, range(20)) == [x * x for x in range(20)]


def test_in_parallel_raises_what_the_work_raises() -> None:
    with pytest.raises(ZeroDivisionError):
        in_parallel(lambda x: 1 // x, [1, 0, 2])


# The cache


def test_another_comment_is_a_hit(cold: Path, programs: SimpleNamespace) -> None:
    first, told = (compile_source(text, "scale", "sm_90", {"FACTOR": 3}) for text in (SCALE, SCALE + "  // It scales."))
    assert first == told
    assert programs.count == 1
    assert compile_source("\n" + SCALE, "scale", "sm_90", {"FACTOR": 3}).remake is None  # the code's line information


def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: SimpleNamespace,
                                      caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PEAKGEMM_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with caplog.at_level(logging.WARNING, "peakgemm"):
        assert scale() == scale()
    assert programs.count == 2
    assert len(caplog.records) == 1
    assert f"no compile cache in {tmp_path / 'file' / 'cache'}" in caplog.text
    assert "Set PEAKGEMM_CACHE_DIR" in caplog.text


def test_clear_leaves_what_is_not_ours(cold: Path, programs: SimpleNamespace) -> None:
    scale()
    (cold / "notes.txt").write_text("mine")
    cache.clear()
    assert files(cold) == [cold / "notes.txt"]
    scale()
    assert programs.count == 2
