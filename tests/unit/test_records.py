"""Records: written whole or not at all, rounded, and refused before the work."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from peakgemm.errors import InvalidValue
from peakgemm.runtime.device import Gpu
from peakgemm.tools.bench import records

GPU = Gpu(0, "A GPU", "sm_90", 132, 1980, 3352.3, 50 << 20, "13.0")


def test_write(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    records.write(path, {"a": [1, 2.5, None, "x"], "b": {"c": True}})
    assert json.loads(path.read_text()) == {"a": [1, 2.5, None, "x"], "b": {"c": True}}
    assert path.read_text().endswith("}\n")
    assert path.stat().st_mode & 0o777 == 0o644
    with pytest.raises(TypeError):
        records.write(tmp_path / "other.json", {"a": object()})
    with pytest.raises(InvalidValue, match="cannot write"):
        records.write(tmp_path / "gone" / "record.json", {})
    assert os.listdir(tmp_path) == ["record.json"]


def test_a_failed_rename_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    path.write_text("old")

    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        records.write(path, {"new": 1})
    assert os.listdir(tmp_path) == ["record.json"]
    assert path.read_text() == "old"


@pytest.mark.parametrize(("value", "written"), [
    (0.123456789, 0.123457), (123456.789, 123457.0), (1e-9 / 3, 3.33333e-10), (2.0, 2),
    (float("inf"), "inf"), (float("-inf"), "-inf"), (float("nan"), "nan"), (2**60 + 1, 2**60 + 1), (True, True),
])
def test_rounding(tmp_path: Path, value: object, written: object) -> None:
    path = tmp_path / "record.json"
    records.write(path, {"deep": [{"value": value}, (value,)]})
    found = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert found == {"deep": [{"value": written}, [written]]}
    assert type(found["deep"][0]["value"]) is type(written)


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "link.json", tmp_path / "there" / "record.json"
    link.symlink_to(target)
    for new in (1, 2):  # a link to nothing yet, and to a file
        records.check_writable(link)
        records.write(link, {"new": new})
        assert link.is_symlink() and json.loads(target.read_text()) == {"new": new}
    assert os.listdir(target.parent) == ["record.json"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
def test_a_fifo_is_written_to(tmp_path: Path) -> None:
    fifo, link = tmp_path / "fifo", tmp_path / "link"
    os.mkfifo(fifo)
    link.symlink_to(fifo)
    for path in (fifo, link):
        records.check_writable(path)
        with subprocess.Popen(["cat", fifo], stdout=subprocess.PIPE) as reader:
            records.write(path, {"a": 1})
            assert reader.communicate(timeout=10)[0] == b'{"a":1}\n'
        assert fifo.is_fifo() and link.is_symlink() and not records.replaceable(path)
    assert sorted(os.listdir(tmp_path)) == ["fifo", "link"]


def test_what_must_not_be_written_is_refused_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    records.check_writable(None)
    records.check_writable(Path("record.json"))
    assert os.listdir(tmp_path) == []
    for path in (Path("gone", "record.json"), tmp_path):
        with pytest.raises(InvalidValue, match=r"cannot write .*name a file in a folder that exists"):
            records.check_writable(path)
    there, hard, link, new = Path("a.npy"), Path("hard"), Path("link"), Path("c.npy")
    there.write_text("a")
    os.link(there, hard)
    link.symlink_to(there)
    for path in (there, hard, link, tmp_path / "a.npy"):
        with pytest.raises(InvalidValue, match=r"cannot write .*: it is a\.npy, which the command reads or writes"):
            records.check_writable(path, "b.npy", None, "a.npy")
    with pytest.raises(InvalidValue, match=r"it is \./c\.npy"):
        records.check_writable(new, "./c.npy")
    records.check_writable(new, there, hard, link)


def test_one_run_lies_at_the_top_and_several_under_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/peakgemm", "ladder", "--json", "my file.json"])
    runs = [{"shape": [1, 1, 1], "rungs": []}, {"shape": [2, 2, 2], "rungs": []}]
    single = records.record(None, "sm_90", runs[:1])
    assert (single["schema"], single["device"], single["arch"], single["shape"]) == (1, None, "sm_90", [1, 1, 1])
    assert single["command"] == "peakgemm ladder --json 'my file.json'" and records.runs_of(single) == [single]
    several = records.record(GPU, "sm_90", runs, versions={"cublas": "13.1.0"})
    assert records.runs_of(several) == several["runs"] == runs and several["kernels"] == []
    assert not {"shape", "rungs", "versions"} & set(several)
    assert (several["device"]["name"], several["environment"]["cublas"]) == ("A GPU", "13.1.0")
    assert {"peakgemm", "python", "nvrtc", "numpy", "cuda-core"} <= set(several["environment"])


def test_what_rows_of_a_kernel_share_lies_once() -> None:
    def row(number: int, path: str, error: float) -> dict[str, Any]:
        return {"number": number, "path": path, "config": {"bm": 8}, "max_error": error}

    runs = [{"shape": [size] * 3, "rungs": [row(0, "aligned", size), row(1, path, 2.0)]}
            for size, path in ((1, "aligned"), (2, "aligned"), (3, "guarded"))]
    found = records.record(None, "sm_90", runs)
    assert records.runs_of(found) == runs
    assert [len(kernel) for kernel in found["kernels"]] == [3, 4, 4]
    assert found["runs"][1]["rungs"] == [{"kernel": 0, "max_error": 2}, {"kernel": 1}]


def test_every_record_is_listed() -> None:
    """And nothing else: a name without a folder lies in that of the name before it."""
    root = Path(__file__).parents[2]
    table = (root / "docs" / "records.md").read_text().partition("| record | read by |\n")[2].partition("\n\n")[0]
    listed: list[str] = []
    for line in table.splitlines()[1:]:
        folder = ""
        for name in re.findall(r"`([^`]+\.json)`", line.split("|")[1]):
            folder, _, own = name.rpartition("/") if "/" in name else (folder, "", name)
            listed.append(f"{folder}/{own}")
    assert sorted(listed) == sorted(path.relative_to(root / "results").as_posix()
                                    for path in (root / "results").rglob("*.json"))
