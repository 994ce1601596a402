"""Source assembly, and compilation without a driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from peakgemm.errors import CompileFailed, InvalidValue, MissingComponent
from peakgemm.runtime.architectures import ARCHITECTURES
from peakgemm.runtime.compile import compile_source, in_parallel
from peakgemm.runtime.source import assemble, essence
from scale import SCALE, scale


def test_assemble_joins_once_and_keeps_lines(tmp_path: Path) -> None:
    (tmp_path / "deep.cuh").write_text("int deep;\n")
    (tmp_path / "part.cuh").write_text('#include "deep.cuh"\nint part;\n')
    kernel = tmp_path / "kernel.cu"
    kernel.write_text('int first;\n#include "part.cuh"\n#include "deep.cuh"\n#include "part.cuh"\nint last;\n')
    assert assemble(kernel).splitlines() == [
        f'#line 1 "{kernel}"', "int first;", f'#line 1 "{tmp_path / "part.cuh"}"', f'#line 1 "{tmp_path / "deep.cuh"}"',
        "int deep;", f'#line 2 "{tmp_path / "part.cuh"}"', "int part;", f'#line 3 "{kernel}"', f'#line 4 "{kernel}"',
        f'#line 5 "{kernel}"', "int last;"]
    with pytest.raises(MissingComponent, match=r"gone\.cu cannot be read \(No such file"):
        assemble(tmp_path / "gone.cu")


@pytest.mark.parametrize(("line", "line_instead"), [
    ('#include "include/mma/fragment.cuh"', '#line 1 "include/mma/fragment.cuh"'),
    ("#include <cuda_fp16.h>", "#include <cuda_fp16.h>"), ("#include <vector>", "// no vector"),
    ('#include "gone.cuh"', '#include "gone.cuh"')])
def test_includes_beyond_the_folder(tmp_path: Path, line: str, line_instead: str) -> None:
    (tmp_path / "kernel.cu").write_text(line + "\n")
    text = assemble(tmp_path / "kernel.cu", instead=lambda name: "// no vector" if name == "vector" else None)
    assert text.splitlines()[1] == line_instead


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


def test_what_is_compiled_needs_no_driver(cold: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*args: object) -> None:
        raise RuntimeError("no driver")

    for call in ("cuInit", "cuDriverGetVersion"):
        monkeypatch.setattr(f"cuda.bindings.driver.{call}", absent)
    code = scale(arch="sm_90a")  # a family's architecture is the one that it is of
    assert (code.entry, code.arch, code.kind, code.code[:4]) == ("scale", "sm_90a", "cubin", b"\x7fELF")
    assert 1 <= code.registers <= 32
    assert (code.spill_bytes, code.stack_bytes, code.static_shared) == (0, 0, 0)
    code = scale(kind="ptx")
    assert ".target sm_90" in code.text and ".entry scale(" in code.text
    assert (code.registers, code.spill_bytes) == (None, None)


@pytest.mark.parametrize("kind", ["cubin", "ptx"])
def test_what_does_not_compile(cold: Path, tmp_path: Path, kind: str) -> None:
    """The message names file and line of the source, or the kernel that is wanted."""
    (tmp_path / "bad.cuh").write_text("int fine;\n\nint broken = nonsense;\n")
    kernel = tmp_path / "kernel.cu"
    kernel.write_text('#include "bad.cuh"\n#include "gone.cuh"\n' + SCALE)
    with pytest.raises(CompileFailed, match=rf'{kernel}\(2\): .*"gone.cuh"'):
        compile_source(assemble(kernel), "scale", "sm_90", {"FACTOR": 1}, kind, name="kernel.cu")
    kernel.write_text('#include "bad.cuh"\n' + SCALE)
    with pytest.raises(CompileFailed) as error:
        compile_source(assemble(kernel), "scale", "sm_90", {"FACTOR": 1}, kind, name="kernel.cu")
    assert str(error.value).startswith("kernel.cu does not compile for sm_90:\n")
    assert f"{tmp_path / 'bad.cuh'}(3): error: identifier \"nonsense\" is undefined" in str(error.value)
    scale(kind=kind)  # in the cache under its own entry
    with pytest.raises(CompileFailed, match="holds no kernel 'shrink' for sm_90"):
        compile_source(SCALE, "shrink", "sm_90", {"FACTOR": 3}, kind)


def test_an_unknown_architecture_and_a_compiler_that_is_not_there(cold: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidValue, match=f"'sm_42'.*{', '.join(ARCHITECTURES)}"):
        scale(arch="sm_42")

    def absent() -> None:
        raise RuntimeError("libnvrtc.so.13 not found\nsearched everywhere")

    monkeypatch.setattr("cuda.bindings.nvrtc.nvrtcVersion", absent)
    with pytest.raises(MissingComponent) as error:
        scale()
    for part in ("(libnvrtc.so.13 not found)", "pip install nvidia-cuda-nvrtc", "peakgemm doctor"):
        assert part in str(error.value)


def test_in_parallel() -> None:
    assert in_parallel(lambda x: x * x, range(20)) == [x * x for x in range(20)]
    with pytest.raises(ZeroDivisionError):
        in_parallel(lambda x: 1 // x, [1, 0, 2])
