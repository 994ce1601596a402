"""docs/contributing/add-a-kernel.md, followed to the letter in a copy of the checkout: a new rung, and green tests."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from commands import ROOT
from lab import new
from peakgemm.errors import InvalidValue
from peakgemm.kernels.registry import rung
from seldom import exhaustive

GUIDE = (ROOT / "docs" / "contributing" / "add-a-kernel.md").read_text(encoding="utf-8")
PARTS = ("src", "tests", "docs", "lab", "results", "pyproject.toml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md",
         "constraints.txt")
# The padded tile's rows without the pad, each rotated instead, in a loop short enough for addresses to have registers.
SWIZZLE = (("#pragma unroll\n", "#pragma unroll 4\n"),
           ("As[BM][BK + 1]", "As[BM][BK]"), ("Bs[BN][BK + 1]", "Bs[BN][BK]"),
           ("As[ty][tx] =", "As[ty][(tx + ty) % BK] ="), ("Bs[tx][ty] =", "Bs[tx][(tx + ty) % BK] ="),
           ("fmaf(As[ty][k], Bs[tx][k], acc)", "fmaf(As[ty][(k + ty) % BK], Bs[tx][(k + tx) % BK], acc)"))
ROW = '"swizzled_tile", "say the idea in a line", square_tile, _tiles('
TESTED = ("compile/test_kernels", "simulate/test_every_family", "simulate/test_simulated_commands",
          "simulate/test_rungs", "unit/test_published", "unit/test_figures", "unit/test_validity", "unit/test_commands")
TOUCHED = ("swizzled or 18 or every_rung or records_hold or table_holds or up_to_date or rungs_there_are or unknown "
           "or header")


def edit(path: Path, *changes: tuple[str, str]) -> None:
    text = path.read_text(encoding="utf-8")
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after)
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("tests", [(), exhaustive(TESTED)], ids=["written", "tested"])
def test_a_rung_by_the_guide(tmp_path: Path, tests: tuple[str, ...]) -> None:
    for part in PARTS:  # what a contributor has cloned
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
        else:
            shutil.copy(ROOT / part, tmp_path / part)

    def done(*words: str) -> str:
        ran = subprocess.run([sys.executable, "-m", *words], cwd=tmp_path, capture_output=True, text=True, check=False,
                             env={**os.environ, "PYTHONPATH": f"{tmp_path / 'src'}{os.pathsep}{tmp_path}"})
        assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
        return ran.stdout

    kernels = tmp_path / "src" / "peakgemm" / "kernels"
    command, = re.findall(r"^python -m (lab\.new rung swizzled_tile .*)$", GUIDE, re.M)
    assert done(*command.split()).splitlines()[:3] == [
        f"src/peakgemm/kernels/{name}" for name in ("ladder/18_swizzled_tile.cu", "registry.py", "configs.json")]
    edit(kernels / "ladder" / "18_swizzled_tile.cu", *SWIZZLE)
    edit(kernels / "registry.py", (f"{ROW}1, 1, ", ROW), ("say the idea in a line", "rotated rows in place of a pad"))

    done("peakgemm", "simulate", "18", "--size", "64", "--no-source", "--json", "report.json")
    counters = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["report"]["counters"]
    assert counters["shared_wavefronts"] == counters["shared_wavefronts_ideal"]  # what the swizzle is for
    assert "docs/ladder.md: written" in done("docs.generate")
    assert re.search(r"^\| 18 swizzled tile \| .* not measured ", (tmp_path / "docs" / "ladder.md").read_text(), re.M)
    if tests:
        said = done("pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-rs", "-k", TOUCHED,
                    *(f"tests/{name}.py" for name in tests))
        assert "no GPU's bits are recorded yet: python -m lab.hashes" in said  # skipped, with the reason


@pytest.mark.parametrize(("name", "number", "like", "says"), [
    ("Swizzled", 18, 4, "name = 'Swizzled'"), ("naive", 18, 4, "taken by 00 naive"),
    ("swizzled", 14, 4, "taken by 14 large tile"), ("swizzled", 100, 4, "number = 100 must be from 0 to 99"),
    ("swizzled", 18, 16, "16 sass tuned has no source of its own; give --like 14")])
def test_what_no_new_rung_can_be(tmp_path: Path, name: str, number: int, like: int, says: str) -> None:
    with pytest.raises(InvalidValue, match=re.escape(says)):
        new.new_rung(tmp_path, name, number, rung(like))
    assert list(tmp_path.iterdir()) == []
