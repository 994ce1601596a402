"""``peakgemm explore``: pages of rungs and files, SASS linked to the trace, mistakes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from commands import ROOT, here, run
from docs.generate import browser
from docs.generate import explorer as site
from peakgemm.errors import MissingComponent
from peakgemm.kernels.registry import rung
from peakgemm.runtime.compile import compile_source
from peakgemm.tools.explore.kernels import rung_trace
from peakgemm.tools.explore.linked import rung_sass
from peakgemm.tools.explore.trace import shown

__all__ = ["here", "run"]

TRANSPOSE = str(ROOT / "tests" / "support" / "fixtures" / "transpose_naive_tile.cu")
LAUNCH = ("--grid", "2x2", "--block", "32x32", "--arg", "f32:64x64", "--arg", "f32:64x64:arange", "--arg", "64",
          "--arg", "64")


def data_of(page: Path) -> list:
    return json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(), re.S)[1])


def test_rungs_side_by_side(here: Path, run) -> None:
    assert run("explore", "03", "04", "-o", "out")[0] == 0
    three, four = (json.loads((here / "out" / name).read_text()) for name in ("03.json", "04.json"))
    assert three["counters"]["shared_wavefronts"] == 418_176
    assert four["counters"]["shared_wavefronts"] == 25_344
    assert [each["name"] for each in data_of(here / "out" / "index.html")] == ["03", "04"]


@pytest.mark.parametrize("number", [3, 13, 14])
def test_sass_is_linked_to_the_instructions_that_were_traced(number: int) -> None:
    trace = rung_trace(rung(number))
    lines = rung_sass(rung(number), trace)["lines"]
    linked = [(line["text"], trace["code"][line["code"]]["text"]) for line in lines if "code" in line]
    assert len(linked) > 0.98 * len(lines) > 60
    assert any(text.split()[0] == "FFMA" for text, _ in linked)
    assert all(ptx.startswith("fma.rn.f32") for text, ptx in linked if text.split()[0] == "FFMA")
    assert all("cp.async" in ptx for text, ptx in linked if "LDGSTS" in text)
    assert any(line["late"] for line in lines)
    assert all(re.fullmatch(r"[01r.!A-Z]*", line["reads"]) for line in lines)


def test_a_file_of_cuda(here: Path, run) -> None:
    code, _, wrong = run("explore", TRANSPOSE, *LAUNCH, "-o", "page.html")
    assert (code, wrong, [path.name for path in here.iterdir()]) == (0, "", ["page.html"])
    (data,) = data_of(here / "page.html")
    assert data["name"] == "transpose_naive_tile" and "33 words in place of 32" in json.dumps(data)
    assert data["files"][0]["lines"][0].startswith("// Someone's transpose")
    assert data["sass"]["notes"] or data["sass"]["lines"]
    (here / "beyond.cu").write_text('extern "C" __global__ void f(float* p) { p[threadIdx.x] = 1; }\n')
    code, _, wrong = run("explore", "beyond.cu", "--grid", "1", "--block", "64", "--arg", "f32:40", "-o", "p.html")
    assert (code, "beyond.cu: 1 fault; the page says which" in wrong) == (1, True)
    assert "outside every array" in (here / "p.html").read_text()


def test_a_page_names_no_folder_of_the_machine_that_made_it(here: Path, tmp_path_factory, run) -> None:
    """Pages are shared. Two threads meet in a header's line, so that a message names files, too."""
    away = tmp_path_factory.mktemp("away")
    for folder in (here / "src", away):
        folder.mkdir(exist_ok=True)
        (folder / "part.cuh").write_text("__device__ void part(float* p) {\n  p[threadIdx.x] = 2;\n}\n")
        (folder / "mine.cu").write_text('#include "part.cuh"\nextern "C" __global__ void f(float* p) {\n  part(p);\n'
                                        "  p[threadIdx.x + 40] = 1;\n}\n")
    ptx = compile_source((away / "mine.cu").read_text(), "f", "sm_90", kind="ptx", include=[away],
                         name="/home/me/mine.cu").text
    assert "/home/me/" in ptx and str(away) in ptx
    (away / "mine.ptx").write_text(ptx.replace("/home/me/", "C:\\\\Users\\\\me\\\\"))  # as nvcc writes it on Windows
    for file, names, *more in ((here / "src" / "mine.cu", ["src/mine.cu", "src/part.cuh"], "--no-sass"),
                               (away / "mine.cu", ["mine.cu", "part.cuh"]),
                               (away / "mine.ptx", ["mine.cu", "part.cuh"], "--no-sass")):
        words = str(file), "--grid", "1", "--block", "64", "--arg", "f32:80", "-o", "p.html", *more
        assert run("explore", *words)[0] == 1
        text = (here / "p.html").read_text()
        assert not [path for path in (str(here), str(away), "Users", str(Path.home())) if path in text]
        (data,) = data_of(here / "p.html")
        assert sorted(each["name"] for each in data["files"]) == names
        assert f"{names[1]}:2" in json.dumps(data["faults"])
        assert more or any("at" in line for line in data["sass"]["lines"])
    os.chdir("/")
    assert shown(str(away / "mine.cu")) == "mine.cu"


@pytest.mark.parametrize(("words", "what"), [
    (("99",), "unknown rung"),
    (("mine.cu", "--grid", "1", "--block", "32"), "mine.cu is not a file"),
    ((TRANSPOSE,), "needs --grid and --block"),
    ((TRANSPOSE, "--grid", "1", "--block", "a"), "--block 'a' is not X"),
    ((TRANSPOSE, "--grid", "1", "--block", "32", "--shape", "1x1x1"), "--shape: for rungs only"),
    (("03", "--grid", "1"), "--grid: for files only"),
    (("15", "--arch", "sm_80"), "no kernel is left for sm_80"),
    (("03", "--no-sass", "-o", "gone/page.html"), "cannot write gone/page.html"),
    (("03", "--no-sass", "-o", "/proc/nothing/pages"), "cannot write"),
    (("03", "--no-sass", "--serve", "-o", "page.html"), "--serve needs a folder"),
])
def test_mistakes(here: Path, run, words: tuple[str, ...], what: str) -> None:
    code, _, wrong = run("explore", *words)
    assert (code, what in wrong, list(here.iterdir())) == (2, True, []), wrong


def test_what_the_browser_gets_simulates_with_numpy_alone(tmp_path: Path) -> None:
    site.pack(tmp_path / "peakgemm.zip")
    with zipfile.ZipFile(tmp_path / "peakgemm.zip") as packed:
        packed.extractall(tmp_path)
    code = ("import json, sys, browser as b, peakgemm; assert peakgemm.__file__.startswith(sys.argv[1]);"
            "answer = json.loads(b.answer(open(sys.argv[2]).read()));"
            "print(answer['trace']['counters']['shared_wavefronts'],"
            "*{m.split('.')[0] for m in sys.modules} & {'cuda', 'typer', 'rich', 'torch', 'platformdirs'})")
    setup = next(each for each in site.setups() if each["name"] == "transpose")
    (tmp_path / "request.json").write_text(json.dumps({**setup, "max_steps": 10**6, "max_seconds": 60}))
    printed = subprocess.run([sys.executable, "-c", code, str(tmp_path), str(tmp_path / "request.json")], check=True,
                             capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert printed.stdout.split() == ["4224"]  # and none of the modules


def test_an_exercise_in_the_browser_says_which_goals_are_missed() -> None:
    known = {each["name"]: each for each in site.setups()}

    def missed(name: str, before: str = "", after: str = "") -> list[tuple[str, str]]:
        setup = known[name]
        text = compile_source(setup["source"].replace(before, after), name, "sm_90", kind="ptx",
                              name=f"{name}.cu").text
        goal = known[setup["goal"]]["ptx"]
        answer = json.loads(browser.answer(json.dumps({**setup, "ptx": text, "goal": goal, "max_steps": 10**6,
                                                       "max_seconds": 60})))
        assert len(answer["findings"]) == 2 + len(setup["counters"])
        return [(each["goal"], each["said"]) for each in answer["findings"] if not each["met"]]

    assert missed("exercise_04", "Bs[BN][BK]", "Bs[BN][BK + 1]") == []
    (goal, said), = missed("exercise_04")
    assert goal == "shared wavefronts"
    assert re.fullmatch(r"418,176, at most 25,344; exercise_04.cu line \d+ has 12,288 where 384 would do", said)
    assert [goal for goal, _ in missed("exercise_00")] == ["right result"]  # as it is handed out


def test_numpy_of_another_digest_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = {"info": {"version": "0"}, "packages": {"numpy": {"file_name": "numpy.whl", "sha256": "0" * 64}}}
    monkeypatch.setattr(site, "_from_cdn", lambda version, file: b"other")
    monkeypatch.setattr(site, "_from_carrier", lambda file: b"another")
    with pytest.raises(MissingComponent, match=r"another SHA-256.*put it into"):
        site.numpy_wheel(lock, tmp_path)
    assert list(tmp_path.iterdir()) == []
