"""The screenings of the library's kernel: the record, what is reckoned from it, and what the page says of it."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from peakgemm.kernels.library import SPECIALISED
from peakgemm.kernels.validity import violations
from peakgemm.problem import Config
from peakgemm.runtime.architectures import architecture

ROOT = Path(__file__).parents[2]
CONFIG = Config(128, 256, 16, 8, 16, stages=6, fragments=2, producers=128, registers=232, split=0)


@pytest.fixture(scope="module")
def tool() -> Iterator[Any]:
    """Imported once: what it reckons of records that no test changes takes ten seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "tools"))
        patch.delitem(sys.modules, "screening", raising=False)
        yield importlib.import_module("screening")
        sys.modules.pop("screening", None)


@pytest.fixture
def record(tool: Any) -> dict[str, Any]:
    return json.loads(tool.RECORD.read_text())


def row(ratio: float, config: Config = CONFIG, **more: Any) -> dict[str, Any]:
    return {"screening": "one", "layout": "NN", "nvrtc": "13.4", "shape": [4096] * 3, "config": config.to_json(),
            "bank_cycles_per_ffma": 1.125, "ffma_fraction": 0.8, "registers": 168, "spill_bytes": 0,
            "ratio_to_cublas": ratio, **more}


def run(tool: Any, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["tools/screening.py", *words])
    tool.main()


def test_the_page_says_what_the_records_hold(tool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tool, monkeypatch, "--check")


def test_every_figure_of_an_outcome_is_from_a_record(tool: Any) -> None:
    section = tool.PAGE.read_text().split("## The library's kernels")[1].split("\n## ")[0]
    rows = [line.split(" | ")[2] for line in section.splitlines() if line.startswith("| ") and "| outcome" not in line]
    assert len(rows) > 10
    text = "\n".join(rows)
    for phrase in tool.quoted():
        text = text.replace(phrase, "")
    assert not re.findall(r"\d[.]\d", text)


def test_every_ratio_of_the_end_of_a_tile_is_from_a_record(tool: Any) -> None:
    text = tool.PAGE.read_text().split("## The end of a tile")[1].split("\n## ")[0]
    for phrase in tool.quoted_tiles():
        assert phrase in text
        text = text.replace(phrase, "")
    # What is left are modelled cycles, all of them above 1.05, and how far the last search was off.
    text = re.sub(r"NVRTC 13[.]4|13[.]0 against 13[.]4", "", text)
    assert all(float(figure) >= 1.02 for figure in re.findall(r"\d[.]\d+", text))


def test_a_figure_that_disagrees_fails(tool: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = tool.PAGE.read_text()
    monkeypatch.setattr(tool, "PAGE", tmp_path / "page.md")
    block, phrases = tool.block(), tool.quoted()
    monkeypatch.setattr(tool, "block", lambda: block)  # reckoned once: many pages are compared
    monkeypatch.setattr(tool, "quoted", lambda: phrases)
    for phrase in phrases:
        assert page.count(phrase) == 1, phrase
        figures = list(re.finditer(r"\d+(\.\d+)?", phrase))
        for figure in (figures[0], figures[-1]):
            for at in figure.span():
                tool.PAGE.write_text(page.replace(phrase, f"{phrase[:at]}7{phrase[at:]}"))
                with pytest.raises(SystemExit, match=re.escape(f"and quote: {phrase}")):
                    run(tool, monkeypatch, "--check")
    above, inside = page.split(tool.MARKS[0])
    for words in (r"\| all \| 254 \| 0.5", r"committed table has "):
        changed, times = re.subn(f"({words})", r"\g<1>7", inside)
        assert times == 1
        tool.PAGE.write_text(above + tool.MARKS[0] + changed)
        with pytest.raises(SystemExit, match="differs from the records"):
            run(tool, monkeypatch, "--check")
    run(tool, monkeypatch, "--write")
    run(tool, monkeypatch, "--check")
    assert tool.PAGE.read_text() == page


def test_another_record_gives_another_page(tool: Any, record: dict[str, Any], monkeypatch: pytest.MonkeyPatch,
                                           tmp_path: Path) -> None:
    for found in (found for run in record["runs"] for found in run["rungs"] if "loop_ffma" in found):
        found["ratio_to_cublas"] = 1 / (found["bank_cycles_per_ffma"] + 1)
    monkeypatch.setattr(tool, "RECORD", tmp_path / "record.json")
    tool.RECORD.write_text(json.dumps(record))
    assert re.search(r"\| all \| 254 \| 1\.00 \|", tool.block())
    with pytest.raises(SystemExit, match="differs from the records"):
        run(tool, monkeypatch, "--check")


def test_rank_correlation(tool: Any) -> None:
    assert tool.spearman([1, 2, 3, 10], [5, 6, 7, 8]) == 1
    assert tool.spearman([1, 2, 3, 10], [8, 7, 6, 5]) == -1
    assert tool.spearman([1, 2, 3, 4, 5], [2, 1, 4, 3, 5]) == pytest.approx(1 - 6 * 4 / (5 * 24))
    # Ranks 0.5 0.5 2 3 and 0 1 2 3: covariance 4.5, variances 4.5 and 5.
    assert tool.spearman([1, 1, 2, 3], [1, 2, 3, 4]) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)
    assert tool.spearman([1, 1, 1], [1, 2, 3]) is None


def test_what_configurations_are_ranked_by(tool: Any) -> None:
    assert tool.cycles(row(1)) == 1.125
    assert tool.registers(row(1)) == 232  # the file is dealt anew
    assert tool.registers(row(1, Config(128, 128, 16, 8, 8, producers=128))) == 168
    issue = 1.125 + 0.25  # a quarter of another instruction for each FFMA
    assert tool.combined(row(1)) == pytest.approx(issue)  # 512 tiles, dealt evenly
    wide = Config(192, 192, 8, 12, 12, split=0)
    assert tool.combined(row(1, wide)) == pytest.approx(issue * (22 * 192 / 4096) ** 2)
    whole = Config(128, 256, 16, 8, 16)  # 512 tiles in 4 waves of 132
    assert tool.combined(row(1, whole)) == pytest.approx(issue * 528 / 512)
    halves = Config(128, 256, 16, 8, 16, split=2)  # 1024 halves in 8 waves
    assert tool.combined(row(1, halves)) == pytest.approx(issue * 1056 / 1024)


def test_groups_of_the_correlation(tool: Any) -> None:
    rows = [row(1 - i / 100, bank_cycles_per_ffma=1 + i / 10, spill_bytes=8 * (i > 7)) for i in range(9)]
    rows.append(row(2, Config(64, 64, 16, 8, 8, split=0), bank_cycles_per_ffma=1.05))
    found = {name: (count, rhos[0]) for name, count, rhos in tool.correlations(rows)}
    assert set(found) == {"all", "no spills", "screening: one", "layout NN", "128x256x16 / 8x16"}  # 64x64 has one row
    assert found["128x256x16 / 8x16"] == (9, pytest.approx(1))
    assert found["no spills"][0] == 9 and found["all"][0] == 10 and 0.8 < found["all"][1] < 1


def test_what_a_model_names_first(tool: Any) -> None:
    rows = [row(1.0, bank_cycles_per_ffma=1.2), row(0.5, bank_cycles_per_ffma=1.1),
            row(0.8, bank_cycles_per_ffma=1.1)]
    assert tool.picked(rows, tool.cycles) == 0.5  # of equals, the slowest
    assert tool.picked(rows, tool.cycles, 2) == 0.8
    assert tool.picked(rows, tool.cycles, 3) == 1


def test_pairs(tool: Any) -> None:
    rows = [row(1.0), row(1.1, spill_bytes=8), row(0.5, layout="TN"), row(0.6, layout="TN", spill_bytes=8),
            row(0.9, layout="NT")]
    found = tool.pairs(rows, lambda r: r["layout"], lambda r: not r["spill_bytes"], lambda r: r["spill_bytes"] == 8)
    assert found == [pytest.approx(1.1), pytest.approx(1.2)]


def test_rows_hold_together(tool: Any, record: dict[str, Any]) -> None:
    """Facts agree with each other, configurations are of today's kernel, and names are explained."""
    rows = tool.rows_of(record)
    limits = architecture("sm_90")
    for found in rows:
        assert found["screening"] in record["screenings"]
        config = Config(**found["config"])
        if config.tn == 12:  # what an earlier text stored, and today's refuses
            assert any("TN = 12" in why for why in violations(SPECIALISED, config, limits))
        elif "walk" not in found:  # a still earlier one had other limits
            assert not violations(SPECIALISED, config, limits), config
        if "tflops" in found:  # the ratio of medians is near the median of ratios
            assert found["tflops"] / found["cublas_tflops"] == pytest.approx(found["ratio_to_cublas"], rel=0.03)
        assert ("loop_ffma" in found) == ("walk" not in found and found["nvrtc"] == "13.4")
        if "loop_ffma" in found:
            assert found["loop_bytes"] == 16 * found["loop_instructions"]
            assert found["ffma_fraction"] == pytest.approx(found["loop_ffma"] / found["loop_instructions"], rel=1e-5)
            # Bit 8 halves a loop whose FFMAs would be more than 1280 at most.
            steps = found["loop_ffma"] // (config.tm * config.tn)
            assert steps == (config.bk if config.tm * config.tn * config.bk <= (1280 if config.variant & 8 else 2560)
                             else 8), config
    kernels = {(found["layout"], json.dumps(found["config"])) for found in tool.with_facts(rows)}
    assert len(kernels) == len(tool.with_facts(rows)) >= 200


def test_places_in_the_ranking(tool: Any, record: dict[str, Any]) -> None:
    known = tool.entries(record["device"]["name"])
    assert known
    for entry, over, place, count in known:
        assert entry["ratio"] > 1 and 0 <= place < count
        assert over >= 1 and (over == 1 or place > 0)
