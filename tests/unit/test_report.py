"""`peakgemm report`: what the page holds, and records that are no good."""
# ruff: noqa: F401, F811  (fixtures of tests/support)

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from commands import here, run
from peakgemm.errors import InvalidValue
from peakgemm.tools.report import load, page
from peakgemm.tools.report.figures import figures

ROOT = Path(__file__).parents[2]
H100 = ROOT / "results" / "h100"
GPU = {"name": "A GPU", "arch": "sm_90", "sm_count": 132, "clock_mhz": 1980, "bandwidth_gbs": 3352.3,
       "l2_bytes": 52428800, "driver": "13.0"}
HEAD = {"schema": 1, "command": "peakgemm test --json <a&b>", "time": "2026-11-27T00:00:00+00:00", "device": GPU,
        "arch": "sm_90", "environment": {"nvrtc": "13.0", "cublas": "13.1"}}
ROW = {"suite": "square", "name": "64x64x64", "shape": [64, 64, 64], "tflops": 2.0, "cublas_tflops": 1.0,
       "ratio_to_cublas": 2.0, "ratio_spread": [1.9, 2.1], "mode": "graph", "sm_clock_mhz": 1980, "power_w": 500}


@pytest.fixture
def keep(tmp_path: Path) -> Callable[..., Path]:
    """Write a record of some rows, the head changed as told; a field of ``None`` is left out."""
    def write(rows: Any, name: str = "a.json", **changed: Any) -> Path:
        whole = {**HEAD, "rungs": rows, **changed}
        (tmp_path / name).write_text(json.dumps({k: v for k, v in whole.items() if v is not None or k == "device"}))
        return tmp_path / name
    return write


@pytest.fixture(scope="module")
def published() -> str:
    return page(load([H100]))


def test_every_figure_is_on_one_page_with_command_and_conditions(published: str) -> None:
    assert not re.search(r"""(src|href)=["'](?!#|data:)|url\(|@import|fetch\(""", published) and "{{" not in published
    found = {one.name: one for one in figures(load([H100]))}
    assert {"climb", "speed-squares", "speed-k1024", "roofline", "tiles-sweep", "error-long-k", "facts", "counters",
            "workload", "bill", "ratio-bench-ieee", "ratio-bench-emulated", "ratio-bench-drawn"} <= set(found)
    for name, one in found.items():
        part = published.partition(f'<section id="{name}">')[2].partition("</section>")[0]
        assert one.sources and (one.draw or one.table)
        for source in one.sources:
            assert source.record["command"] in part.replace("&#x27;", "'").replace("&quot;", '"'), name
        assert "NVIDIA H100" in part and "NVRTC 13" in part, name
        assert part.count("<svg") == (2 if one.draw else 0), name


def test_a_summary_comes_first_and_drawn_products_last_by_their_ratio(published: str) -> None:
    shown = list(figures(load([H100])))
    assert shown[0].name == "summary" and shown[0].table is not None
    ratios = [one for one in shown if one.name.startswith("ratio-")]
    assert ratios[-1].name == "ratio-bench-drawn" and shown[0].table.rows[-1][1][0] in ("drawn", "shapes")
    table = ratios[-1].table
    assert table is not None
    place = [name for name, _ in table.columns].index("of cuBLAS")
    values = [row[place][1] for row in table.rows]
    assert len(values) == 200 and values == sorted(values)
    part = published.partition('<section id="ratio-bench-drawn">')[2].partition("</section>")[0]
    assert part.index("<details><summary>Chart</summary>") < part.index("<svg")
    assert "<summary>Chart" not in published.partition('<section id="climb">')[2].partition("</section>")[0]


def test_labels_of_the_roofline_do_not_touch() -> None:
    one = next(one for one in figures(load([H100])) if one.name == "roofline")
    for width in (860, 360):
        assert one.draw is not None
        text = one.draw(width).text()
        labels = [float(y) for y in re.findall(r'y="([\d.]+)" class="s\d small">\d\d', text)]
        assert len(labels) == 18 and min(b - a for a, b in pairwise(sorted(labels))) >= 12


def test_every_chart_is_whole_xml_within_its_box() -> None:
    for one in figures(load([H100])):
        for width in (860, 360) if one.draw else ():
            assert one.draw is not None
            root = ET.fromstring(one.draw(width).text(alone=True))
            high = float(root.get("height", 0))
            for mark in root.iter():
                x, y = mark.get("x", mark.get("cx", "0")), mark.get("y", mark.get("cy", "0"))
                assert -1 <= float(x) <= width + 1 and -1 <= float(y) <= high + 1, (one.name, width, mark.attrib)


def test_words_of_a_record_are_no_markup(keep: Any) -> None:
    text = page(load([keep([{**ROW, "name": "<script>x</script>", "kernel": "&"}])]))
    assert "<script>x" not in text and "&lt;script&gt;x" in text and "&lt;a&amp;b&gt;" in text


@pytest.mark.parametrize(("rows", "changed", "says"), [
    ([ROW], {"schema": 2}, r"a\.json is of schema 2, this peakgemm reads schema 1"),
    ([ROW], {"command": None, "environment": None}, r"a\.json lacks command, environment"),
    ([], {}, r"a\.json holds no rows"), ([{"suite": "square"}], {}, "row 0: name missing"),
    ([ROW, {k: v for k, v in ROW.items() if k != "ratio_spread"}], {}, "row 1: ratio_spread missing"),
    ([{"digests": {}}], {}, r"no figure shows any of these: a\.json"),
])
def test_records_that_are_no_good(keep: Any, rows: Any, changed: Any, says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        load([keep(rows, **changed)])


def test_files_that_are_no_records_and_records_of_two_gpus(keep: Any, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "b.json").write_bytes(b"\xff\xfe")
    (tmp_path / "empty").mkdir()
    for name in ("one", "two"):
        (tmp_path / "nested" / name).mkdir(parents=True)
        (tmp_path / "nested" / name / "a.json").write_text("{}")
    for name, says in (("a.json", "is no JSON"), ("b.json", "no text"), ("gone.json", "No such file"),
                       ("empty", "no record to report"), ("nested", "give one of .*/nested/one, .*/nested/two")):
        with pytest.raises(InvalidValue, match=says):
            load([tmp_path / name])
    records = keep([ROW]), keep([ROW], "other.json", device={**GPU, "name": "Another"})
    with pytest.raises(InvalidValue, match=r"A GPU: a\.json; Another: other\.json"):
        load(records)


def test_command(here: Path, run: Any, keep: Any) -> None:
    keep([ROW])
    keep([{"digests": {}}], "bits.json")
    code, said, complained = run("report", "a.json", "bits.json", "-o", "page.html")
    assert code == 0 and "from 1 record" in said and "bits.json" in complained
    assert "64x64x64" in (here / "page.html").read_text()


