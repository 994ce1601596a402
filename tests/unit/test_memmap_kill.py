"""`tools/memmap_kill.py`, small and without a GPU: kills, counts, and that its check finds one wrong element."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import record_schema

TOOL = Path(__file__).parents[2] / "tools" / "memmap_kill.py"


@pytest.fixture(scope="module")
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("memmap_kill", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_sides_fill_what_there_is(tool: Any) -> None:
    for total, inner in ((54 * 10**9, None), (120 * 10**9, 180_000)):
        n, k = tool.sides(total, inner)
        assert 0.99 * total < 4 * (2 * n * k + n * n) <= total and k == (inner or n)


def test_the_check_finds_one_wrong_element(tool: Any) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((700, 700), np.float32) for _ in range(2))
    c = a @ b
    good = tool.check(a, b, c)
    assert good["vector"] < 0.1 and good["elements"] < 5
    c[333, 444] = np.nan  # not among the elements that are looked at
    assert tool.check(a, b, c) == {"vector": np.inf, "elements": good["elements"]}
    c[333, 444] = 0
    c[:256, :256] = 0
    assert tool.check(a, b, c)["vector"] > 1


def test_a_product_killed_twice(tmp_path: Path) -> None:
    place = tmp_path / "record.json"
    subprocess.run([sys.executable, str(TOOL), "--folder", str(tmp_path), "--gigabytes", "0.15", "--kills", "2",
                    "--seconds", "100", "--json", str(place)], check=True, stdout=subprocess.DEVNULL)
    record = json.loads(place.read_text())
    record_schema.validate(record)
    found, = record["found"]
    assert len(found["kills"]) == 2 and found["tiles"] == 16 and found["computed_twice"] == 0
    assert found["last_run"]["found"] == found["kills"][-1]["tiles_after"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]
