"""Tools that need a GPU, torch or Triton: without them their help is printed, and a run ends with one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITHOUT_TRITON = """
import runpy, sys
sys.modules["triton"] = None
from peakgemm.tools.bench import peers
from peakgemm.runtime import device
device.require, peers.TorchPeer.__init__ = (lambda: None), (lambda self: None)
sys.argv = [sys.argv[1], "--json", "a.json"]
runpy.run_module(sys.argv[0], run_name="__main__")
"""


def ended(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, cwd=folder,
                          env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)})


@pytest.mark.parametrize("name", ["reproducible_speed", "launch_library", "memmap_kill"])
def test_help(name: str, tmp_path: Path) -> None:
    done = ended(tmp_path, "-m", f"lab.{name}", "--help")
    assert done.returncode == 0 and done.stdout.startswith("usage: ") and not done.stderr


@pytest.mark.parametrize(("name", "words", "code", "says"), [
    ("reproducible_speed", ("--json", "a.json"), 1, "reproducible_speed.py: needs a GPU: "),
    ("launch_library", (), 1, "launch_library.py needs torch and a GPU: "),
    ("launch_library", ("odd",), 2, "odd: there are tiled, reducing"),
])
def test_what_is_missing_is_said(name: str, words: tuple[str, ...], code: int, says: str, tmp_path: Path) -> None:
    done = ended(tmp_path, "-m", f"lab.{name}", *words)
    assert done.returncode == code and says in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_without_triton(tmp_path: Path) -> None:
    done = ended(tmp_path, "-c", WITHOUT_TRITON, "lab.reproducible_speed")
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.startswith("reproducible_speed.py: needs torch and Triton, and triton cannot be imported")
