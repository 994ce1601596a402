"""Products of files that are refused or fail: they leave nothing that is in the way of the corrected one. Links."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import peakgemm as pg
from commands import run  # noqa: F401  (a fixture)
from lazy_driver import Devices, present
from peakgemm.calls.host import files
from peakgemm.errors import InvalidType, InvalidValue, MissingComponent, PeakgemmError

M, N, K = 60, 30, 40


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current one, without a GPU: a and b, and what is wrong in some way."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("peakgemm.runtime.device.find", lambda *_: None)
    rng = np.random.default_rng(0)
    for name, shape in (("a", (M, K)), ("b", (K, N)), ("c", (M, N)), ("row", (N,)), ("column", (M, 1))):
        np.save(f"{name}.npy", rng.integers(-4, 5, shape).astype(np.float32))
    np.save("double.npy", np.ones((M, K)))
    np.save("cube.npy", np.ones((2, 2, 2), np.float32))
    np.save("none.npy", np.ones((0, K), np.float32))
    Path("text.npy").write_text("no array")
    Path("closed.npy").write_bytes(Path("a.npy").read_bytes())
    Path("inner").mkdir()
    Path("file").write_text("no folder")
    Path("old.npy").write_bytes(b"kept")
    Path("loop.npy").symlink_to("loop.npy")
    Path("astray.npy").symlink_to("gone/c.npy")
    Path("to-a.npy").symlink_to("a.npy")
    Path("mine.npy.partial").write_text("mine")
    Path("linked.npy.partial").symlink_to("old.npy")
    Path("linked.npy.journal").symlink_to("gone.json")
    return tmp_path


def there(folder: Path) -> dict[str, bytes | str]:
    """Every file and link below, with its content."""
    return {str(path): os.readlink(path) if path.is_symlink() else path.read_bytes()
            for path in folder.rglob("*") if path.is_symlink() or path.is_file()}


WRONG: dict[str, tuple[dict[str, Any], type[PeakgemmError]]] = {
    "c of another shape": ({"c": "b.npy"}, InvalidValue),
    "c of one dimension too long": ({"c": "row.npy", "a": "b.npy", "b": "b.npy", "trans_b": True}, InvalidValue),
    "c of three dimensions": ({"c": "cube.npy"}, InvalidValue),
    "c of another dtype": ({"c": "double.npy"}, InvalidType),
    "c that is not there": ({"c": "gone.npy"}, InvalidValue),
    "c that is the output": ({"c": "c.npy", "out": "c.npy", "overwrite": True}, InvalidValue),
    "c that is a folder": ({"c": "inner"}, InvalidValue),
    "a of another dtype": ({"a": "double.npy"}, InvalidType),
    "a that is not there": ({"a": "gone.npy"}, InvalidValue),
    "a that is no array": ({"a": "text.npy"}, InvalidValue),
    "a without a row": ({"a": "none.npy"}, InvalidValue),
    "a and b that do not match": ({"b": "a.npy"}, InvalidValue),
    "a transposed by mistake": ({"trans_a": True}, InvalidValue),
    "a transposed by a word": ({"trans_a": "yes"}, InvalidValue),
    "alpha that is no number": ({"alpha": "2"}, InvalidType),
    "beta that is no number": ({"beta": 1j, "c": "c.npy"}, InvalidType),
    "beta without c": ({"beta": 1.0}, InvalidValue),
    "an unknown precision": ({"precision": "tf32"}, InvalidValue),
    "a precision that needs a GPU": ({"precision": "fp16x3"}, InvalidValue),
    "devices that are none": ({"devices": "first"}, InvalidValue),
    "a device that is not there": ({"devices": 99}, MissingComponent),
    "an output in no folder": ({"out": "gone/c.npy"}, InvalidValue),
    "an output below a file": ({"out": "file/c.npy"}, InvalidValue),
    "an output that is a folder": ({"out": "inner"}, InvalidValue),
    "an output that is there": ({"out": "old.npy"}, InvalidValue),
    "an output that is a": ({"out": "a.npy", "overwrite": True}, InvalidValue),
    "an output that leads to a": ({"out": "to-a.npy", "overwrite": True}, InvalidValue),
    "an output that leads to no folder": ({"out": "astray.npy"}, InvalidValue),
    "an output that leads to itself": ({"out": "loop.npy", "overwrite": True}, InvalidValue),
    "another's partial output": ({"out": "mine.npy"}, InvalidValue),
    "links beside the output": ({"out": "linked.npy"}, InvalidValue),
    "a name that is too long": ({"out": "x" * 250}, InvalidValue),
}


@pytest.mark.parametrize("what", WRONG)
def test_refused_before_a_file_is_made(what: str, folder: Path) -> None:
    wrong, error = WRONG[what]
    before = there(folder)
    with pytest.raises(error):
        pg.multiply_files(**{"a": "a.npy", "b": "b.npy", "out": "new.npy", **wrong})
    assert there(folder) == before
    pg.multiply_files("a.npy", "b.npy", "new.npy")
    assert (np.load("new.npy") == np.load("a.npy") @ np.load("b.npy")).all()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads and writes everything")
def test_what_must_not_be_read_or_written(folder: Path) -> None:
    Path("closed.npy").chmod(0)
    Path("inner").chmod(0o500)
    for wrong in ({"a": "closed.npy"}, {"out": "inner/c.npy"}):
        with pytest.raises(InvalidValue):
            pg.multiply_files(**{"a": "a.npy", "b": "b.npy", "out": "new.npy", **wrong})
    assert not list(Path().glob("new.npy*")) and not list(Path("inner").iterdir())


def test_a_scheme_that_the_gpu_does_not_have(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = there(folder)
    devices = Devices(2)
    devices.gpus[1] = replace(devices.gpus[1], arch="sm_75")
    with present(monkeypatch, devices):
        with pytest.raises(InvalidValue, match="there is no such kernel for sm_75"):
            pg.multiply_files("a.npy", "b.npy", "new.npy", precision="bf16x9", devices="all")
        assert there(folder) == before


@pytest.mark.parametrize("where", ["prepare", "run"])
def test_what_fails_before_a_tile_is_finished(where: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("as it happens")

    before = there(folder)
    with monkeypatch.context() as patch:
        patch.setattr(files.products if where == "prepare" else files.multi_gpu, where, fails)
        with pytest.raises(RuntimeError, match="as it happens"):
            pg.multiply_files("a.npy", "b.npy", "new.npy")
    assert there(folder) == before
    pg.multiply_files("a.npy", "b.npy", "new.npy", alpha=2)


@pytest.mark.parametrize("c", ["c.npy", "row.npy", "column.npy"])
def test_c_that_broadcasts(c: str, folder: Path) -> None:
    pg.multiply_files("a.npy", "b.npy", "new.npy", c=c)
    assert (np.load("new.npy") == np.load("a.npy") @ np.load("b.npy") + np.load(c)).all()
    pg.multiply_files("a.npy", "b.npy", "other.npy", c="b.npy", beta=0)  # not read
    assert (np.load("other.npy") == np.load("a.npy") @ np.load("b.npy")).all()


@pytest.mark.parametrize("leads", ["inner/real.npy", "inner/old.npy", "on.npy"])
def test_a_link_is_followed(leads: str, folder: Path) -> None:
    """To a file that is there or not, over another link; what lies beside the output lies beside its target."""
    Path("inner/old.npy").write_bytes(b"old")
    Path("on.npy").symlink_to("inner/far.npy")
    Path("link.npy").symlink_to(leads)
    seen: list[str] = []
    said = pg.multiply_files("a.npy", "b.npy", "link.npy", overwrite=leads == "inner/old.npy",
                             progress=lambda *_: seen.extend(sorted(os.listdir("inner"))))
    name = "far.npy" if leads == "on.npy" else Path(leads).name
    assert {f"{name}.partial", f"{name}.journal"} <= set(seen) and said.path == Path("link.npy")
    assert Path("link.npy").is_symlink() and Path("inner", name).is_file() and not Path("inner", name).is_symlink()
    assert (np.load("link.npy") == np.load("a.npy") @ np.load("b.npy")).all()
    assert not list(Path().rglob("far.npy.*")) and not list(Path().glob("link.npy.*"))
    with pytest.raises(InvalidValue, match="is there already"):
        pg.multiply_files("a.npy", "b.npy", "link.npy")


def test_the_command(folder: Path, run: Any) -> None:  # noqa: F811
    """What it refuses, and links, of the output and of --json."""
    before = there(folder)
    for words in ("-o new.npy --c b.npy", "-o new.npy --precision tf32", "-o new.npy --beta 1", "-o gone/new.npy",
                  "-o new.npy --devices 7", "-o new.npy --alpha x", "-o new.npy --c gone.npy", "-o astray.npy",
                  "-o new.npy --json gone/a.json", "-o new.npy --json new.npy.journal", "-o . "):
        code, said, complained = run("multiply", "a.npy", "b.npy", *words.split())
        assert (code, said) == (2, "") and complained, words
        assert there(folder) == before, words
    Path("link.npy").symlink_to("inner/real.npy")
    Path("link.json").symlink_to("inner/real.json")
    assert run("multiply", "a.npy", "b.npy", "-o", "link.npy", "--json", "inner/real.npy.journal")[0] == 2
    code, said, _ = run("multiply", "a.npy", "b.npy", "-o", "link.npy", "--json", "link.json")
    assert code == 0 and said.startswith("link.npy: 60 x 30 x 40 in")
    assert Path("link.npy").is_symlink() and Path("link.json").is_symlink() and Path("inner/real.npy").exists()
    assert json.loads(Path("inner/real.json").read_text())["found"]
