"""Which NVRTC an install brings, resolved by pip for an empty environment. Needs the package index.

docs/contributing/compilers.md has the table.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from peakgemm.runtime.nvrtc import TESTED

OFFLINE = ("Could not find a version", "No matching distribution", "ConnectionError", "Temporary failure")
TESTED_MINORS = {release.rpartition(".")[0] for release in TESTED}


@pytest.mark.exhaustive
@pytest.mark.parametrize(("words", "major"), [((".",), "13"), ((".[cu12]",), "12"), ((".", "cupy-cuda13x"), "13")])
def test_a_tested_release_comes(words: tuple[str, ...], major: str) -> None:
    done = subprocess.run([sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet",
                           "--disable-pip-version-check", "--report", "-", *words],
                          capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    if done.returncode and any(words in done.stderr for words in OFFLINE):
        pytest.skip(f"the package index does not serve it: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr
    packages = (package["metadata"] for package in json.loads(done.stdout)["install"])
    versions = {package["name"]: package["version"] for package in packages}
    # The library loads the NVRTC of the bindings' CUDA.
    old = versions["cuda-bindings"].startswith("12.")
    release = versions["nvidia-cuda-nvrtc-cu12" if old else "nvidia-cuda-nvrtc"]
    assert release.partition(".")[0] == major
    assert release.rpartition(".")[0] in TESTED_MINORS, f"NVRTC {release} is not in peakgemm.runtime.nvrtc.TESTED"
