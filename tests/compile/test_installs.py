"""Which NVRTC an install brings, resolved by pip in an empty environment: nothing is installed. Needs the package
index.

docs/contributing/compilers.md has the table. torch is asked for what it wants of the compiler alone: the rest of it
says nothing about NVRTC, and an index may lack it.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from peakgemm.runtime.nvrtc import TESTED

ROOT = Path(__file__).parents[2]
PACKAGES = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "cuda-bindings")
OFFLINE = ("Could not find a version", "No matching distribution", "ConnectionError", "Temporary failure")
TESTED_MINORS = {release.rpartition(".")[0] for release in TESTED}

pytestmark = [pytest.mark.exhaustive, pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="what torch asks for is another elsewhere")]


class Conflict(Exception):
    """pip finds no set of packages that fits."""


def report(*words: str) -> list[dict]:
    """What pip would install, as its report has it; a test is skipped where the index does not serve it."""
    done = subprocess.run([sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet",
                           "--disable-pip-version-check", "--report", "-", *words],
                          capture_output=True, text=True, check=False, cwd=ROOT)
    if "ResolutionImpossible" in done.stderr and "conflicting dependencies" in done.stderr:
        raise Conflict(done.stderr)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr[-200:]]
        if any(words in done.stderr for words in OFFLINE):
            pytest.skip(f"the package index does not serve it: {said[-1]}")
        pytest.fail(done.stderr)
    return json.loads(done.stdout)["install"]


@cache
def torch_for(cuda: str) -> tuple[str, ...]:
    """What the newest torch of PyPI for that CUDA asks for of the compiler."""
    newest = {"12.8": "torch>=2.8,<2.11", "13.0": "torch>=2.11"}[cuda]
    wanted = report("--no-deps", newest)[0]["metadata"]["requires_dist"]
    return tuple(re.sub(r"^cuda-toolkit\[[^]]*\]", "cuda-toolkit[nvrtc]", line) for line in wanted
                 if re.match(r"(nvidia-cuda-nvrtc|cuda-bindings|cuda-toolkit)", line))


@cache
def resolved(*words: str) -> dict[str, str]:
    """The compiler's packages, and their releases, of an environment with those packages."""
    found = {package["metadata"]["name"]: package["metadata"]["version"] for package in report(*words)}
    return {name: found[name] for name in PACKAGES if name in found}


def loaded(found: dict[str, str]) -> str:
    """The NVRTC that the library loads: that of the bindings' CUDA."""
    return found["nvidia-cuda-nvrtc-cu12" if found["cuda-bindings"].startswith("12.") else "nvidia-cuda-nvrtc"]


@pytest.mark.parametrize(("beside", "extra", "major"), [
    ((), "", "13"), ((), "[cu12]", "12"), (("cupy-cuda13x",), "", "13"), ("13.0", "", "13")],
    ids=["plain", "cu12", "CuPy", "torch for CUDA 13"])
def test_a_tested_release_comes(beside: tuple[str, ...] | str, extra: str, major: str) -> None:
    others = torch_for(beside) if isinstance(beside, str) else beside
    release = loaded(resolved(f".{extra}", *others))
    assert release.partition(".")[0] == major
    assert release.rpartition(".")[0] in TESTED_MINORS, f"NVRTC {release} is not in peakgemm.runtime.nvrtc.TESTED"


def test_torch_for_cuda_12_8_pins_an_older_compiler() -> None:
    """Beside it the cu12 extra cannot be had: what the page says, and what `peakgemm doctor` tells."""
    pinned = torch_for("12.8")
    with pytest.raises(Conflict, match="nvidia-cuda-nvrtc-cu12"):
        resolved(".[cu12]", *pinned)
    assert resolved(".", *pinned)["nvidia-cuda-nvrtc-cu12"].startswith("12.8.")
