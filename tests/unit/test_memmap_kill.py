"""`lab.memmap_kill`, small and without a GPU: kills, counts, and that its check finds one wrong element."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import record_schema
from lab import memmap_kill

TOOL = (sys.executable, "-m", "lab.memmap_kill")
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT)))}


def test_the_check_finds_one_wrong_element() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((700, 700), np.float32) for _ in range(2))
    c = a @ b
    good = memmap_kill.check(a, b, c)
    assert good["vector"] < 0.1 and good["elements"] < 5
    c[333, 444] = np.nan  # not among the elements that are looked at
    assert memmap_kill.check(a, b, c) == {"vector": np.inf, "elements": good["elements"]}
    c[333, 444] = 0
    c[:256, :256] = 0
    assert memmap_kill.check(a, b, c)["vector"] > 1


def test_a_product_killed_twice(tmp_path: Path) -> None:
    place = tmp_path / "record.json"
    subprocess.run([*TOOL, "--folder", str(tmp_path), "--gigabytes", "0.15", "--kills", "2",
                    "--seconds", "100", "--json", str(place)], check=True, stdout=subprocess.DEVNULL,
                   env=ENVIRONMENT)
    record = json.loads(place.read_text())
    record_schema.validate(record)
    found, = record["found"]
    assert len(found["kills"]) == 2 and found["tiles"] == 16 and found["computed_twice"] == 0
    assert found["last_run"]["found"] == found["kills"][-1]["tiles_after"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]
