"""Tools that need a GPU, torch or Triton: without them their help is printed, and a run ends with one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def ended(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, cwd=folder,
                          env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)})


@pytest.mark.parametrize(("name", "words", "code", "says"), [
    ("memmap_kill", ("--help",), 0, "usage: "),
    ("reproducible_speed", ("--json", "a.json"), 1, "reproducible_speed.py: needs a GPU: "),
    ("launch_library", (), 1, "launch_library.py needs torch and a GPU: "),
    ("launch_library", ("odd",), 2, "odd: there are tiled, reducing"),
])
def test_what_is_missing_is_said(name: str, words: tuple[str, ...], code: int, says: str, tmp_path: Path) -> None:
    done = ended(tmp_path, "-m", f"lab.{name}", *words)
    assert done.returncode == code and says in done.stdout + done.stderr and "Traceback" not in done.stderr, done.stderr


