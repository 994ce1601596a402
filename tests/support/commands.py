"""The command line in tests: run in this process or another, tables and records checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import record_schema
from lab import runner
from peakgemm import cli
from peakgemm.cli import console
from peakgemm.tools.bench.records import runs_of
from record_schema import SCHEMA

ROOT = Path(__file__).parents[2]
KINDS = {"suite": "bench", "operation": "linalg", "case": "overhead", "refused": "refused", "ncu": "profiled",
         "digests": "hashed", "results": "accuracy", "workload": "workload", "program": "program", "parts": "bill",
         "errors": "batched", "timed": "timed", "losses": "loss", "candidates": "candidates"}
COLUMNS = 100


def valid(path: Path) -> dict[str, Any]:
    """The record in ``path``, checked: it fits the schema, and the schema names all that it holds."""
    data = json.loads(path.read_text())
    record_schema.validate({**data, "runs": runs_of(data)} if "runs" in data else data)
    assert set(data) <= set(SCHEMA["properties"])
    for run in runs_of(data):
        for row in run.get("rungs", ()):
            kind = next((KINDS[mark] for mark in KINDS if mark in row), "kernel")
            assert set(row) <= set(SCHEMA["$defs"][kind]["properties"])
    return data


def fits(text: str) -> bool:
    """Whether no line is wider than a table may be, and no cell was cut to make it so."""
    return "…" not in text and max(len(line.rstrip()) for line in text.splitlines()) <= COLUMNS


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in; no GPU, whatever the machine has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("peakgemm.runtime.device.find", lambda: None)
    return tmp_path


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run a command line in this process: exit code, what it printed, what it complained of."""
    monkeypatch.setattr(console.out, "width", COLUMNS)  # whatever terminal the tests run in

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["peakgemm", *words])
        with pytest.raises(SystemExit) as end:
            if words[0].startswith("lab."):  # a command of the workshop
                sys.argv[0:2] = [str(Path(*words[0].split("."), "__main__.py"))]
                module = import_module(f"{words[0]}.__main__")
                cli.run(module.app) if hasattr(module, "app") else runner.run(module.command)
            cli.main()
        return end.value.code or 0, *capsys.readouterr()
    return call


def outside(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The same in another process, without a GPU in sight."""
    clean = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "FORCE_COLOR")}
    return subprocess.run([sys.executable, "-m", "peakgemm", *words], capture_output=True, text=True, check=False,
                          timeout=300, env={**clean, "CUDA_VISIBLE_DEVICES": "", **environment})
