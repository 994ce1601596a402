"""Products of files that are refused or fail: they leave nothing that is in the way of the corrected one. Links."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import peakgemm as pg
from commands import run, valid  # noqa: F401  (a fixture)
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
    np.savez("many.npz", x=np.ones(3))
    Path("text.npy").write_text("no array")
    Path("cut.npy").write_bytes(Path("a.npy").read_bytes()[:-5])
    Path("inner").mkdir()
    Path("old.npy").write_bytes(b"kept")
    os.link("a.npy", "hard.npy")
    os.mkfifo("pipe.npy")
    for name, leads in (("loop.npy", "loop.npy"), ("astray.npy", "gone/c.npy"),
                        ("linked.npy.partial", "old.npy"), ("linked.npy.journal", "gone.json")):
        Path(name).symlink_to(leads)
    Path("mine.npy.partial").write_text("mine")
    os.link("a.npy", "of-a.npy.partial")
    return tmp_path


def there(folder: Path) -> dict[str, bytes | str]:
    """Every file and link below, with its content."""
    return {str(path): os.readlink(path) if path.is_symlink() else path.read_bytes()
            for path in folder.rglob("*") if path.is_symlink() or path.is_file()}


FOLDER = "out = .* is a folder; name the file to write"
WRONG: dict[str, tuple[dict[str, Any], type[PeakgemmError], str]] = {
    "c of another shape": ({"c": "b.npy"}, InvalidValue, r"c \(40, 30\) does not broadcast to the result \(60, 30\)"),
    "c of three dimensions": ({"c": "cube.npy"}, InvalidValue, r"cube.npy has shape \(2, 2, 2\)"),
    "c of another dtype": ({"c": "double.npy"}, InvalidType, "c is float64"),
    "c that is the output": (
        {"c": "c.npy", "out": "c.npy", "overwrite": True}, InvalidValue, r"c\.npy is c, an input, which is never repl"),
    "a of another dtype": ({"a": "double.npy"}, InvalidType, "a is float64"),
    "a that is not there": ({"a": "gone.npy"}, InvalidValue, "a: cannot read .*gone.npy .No such file"),
    "a that is no array": ({"a": "text.npy"}, InvalidValue, r"a: .*text\.npy holds no array that can be mapped"),
    "a that was cut": ({"a": "cut.npy"}, InvalidValue, "cut.npy holds no array that can be mapped"),
    "a that is an archive": ({"a": "many.npz"}, InvalidType, "many.npz is an archive"),
    "a that is a pipe": ({"a": "pipe.npy"}, InvalidValue, "a: .*pipe.npy is no regular file, so that it cannot be map"),
    "a that is no path": ({"a": None}, InvalidType, "a is None, of type NoneType; pass the path"),
    "a without a row": ({"a": "none.npy"}, InvalidValue, "there is nothing to write"),
    "a and b that do not match": (
        {"b": "a.npy"}, InvalidValue, r"a \(60, 40\) and b \(60, 40\) do not match: the columns of a"),
    "a transposed by a word": ({"trans_a": "yes"}, InvalidValue, "trans_a"),
    "beta without c": ({"beta": 1.0}, InvalidValue, "beta"),
    "a precision that needs a GPU": ({"precision": "fp16x3"}, InvalidValue, "needs a GPU"),
    "a device that is not there": ({"devices": 99}, MissingComponent, "GPU"),
    "an output in no folder": ({"out": "gone/c.npy"}, InvalidValue, "there is no folder gone; make it"),
    "an output that is a folder": ({"out": "inner"}, InvalidValue, FOLDER),
    "an output that is no path": ({"out": None}, InvalidType, "out is None"),
    "an output that is there": (
        {"out": "old.npy"}, InvalidValue, r"old\.npy is there already; name another output, or pass overwrite"),
    "an output that is a": ({"out": "a.npy", "overwrite": True}, InvalidValue, "a.npy is a, an input"),
    "an output that is a by another name": ({"out": "hard.npy", "overwrite": True}, InvalidValue, "hard.npy is a, an"),
    "a partial output that is a": ({"out": "of-a.npy"}, InvalidValue, r"of-a\.npy\.partial is a, an input"),
    "an output that is a pipe": (
        {"out": "pipe.npy", "overwrite": True}, InvalidValue, "is no regular file, and would be replaced by one"),
    "an output that leads to no folder": ({"out": "astray.npy"}, InvalidValue, "there is no folder .*gone; make it"),
    "an output that leads to itself": ({"out": "loop.npy", "overwrite": True}, InvalidValue, "loop.npy"),
    "another's partial output": (
        {"out": "mine.npy"}, InvalidValue, r"mine\.npy\.partial is there, without a journal that says"),
    "links beside the output": ({"out": "linked.npy"}, InvalidValue, "linked.npy.* is no regular file"),
    "a name that is too long": ({"out": "x" * 250}, InvalidValue, "cannot write"),
    "a name with a zero": ({"out": "x\0y"}, InvalidValue, "zero byte"),
}


@pytest.mark.parametrize("what", WRONG)
def test_refused_before_a_file_is_made(what: str, folder: Path) -> None:
    wrong, error, says = WRONG[what]
    before = there(folder)
    with pytest.raises(error, match=says):
        pg.multiply_files(**{"a": "a.npy", "b": "b.npy", "out": "new.npy", **wrong})
    assert there(folder) == before
    pg.multiply_files("a.npy", "b.npy", "new.npy")
    assert (np.load("new.npy") == np.load("a.npy") @ np.load("b.npy")).all()


HEADER = b"{'descr': '<f4', 'fortran_order': False, 'shape': (%s)}"
TEXTS = (HEADER % b"-3, 4", HEADER % b"9" * 4 + b"0" * 20, HEADER % b"9" * 30, b"{'a")


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01\x00", *(
    b"\x93NUMPY\x01\x00" + bytes([len(text) % 256, len(text) // 256]) + text for text in TEXTS)])
def test_what_is_no_matrix(content: bytes, folder: Path) -> None:
    Path("odd.npy").write_bytes(content)
    with pytest.raises(InvalidValue, match=r"a: odd\.npy (holds no array|has shape)"):
        pg.multiply_files("odd.npy", "b.npy", "new.npy")
    assert not list(Path().glob("new.npy*"))


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


def test_c_that_broadcasts(folder: Path) -> None:
    product = np.load("a.npy") @ np.load("b.npy")
    for c in ("c.npy", "row.npy", "column.npy"):
        pg.multiply_files("a.npy", "b.npy", "new.npy", c=c, overwrite=True)
        assert (np.load("new.npy") == product + np.load(c)).all()
    pg.multiply_files("a.npy", "b.npy", "new.npy", c="b.npy", beta=0, overwrite=True)  # not read
    assert (np.load("new.npy") == product).all()


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


@pytest.mark.parametrize(("words", "says"), [
    ("-o new.npy --c b.npy", "does not broadcast"), ("-o new.npy --devices 7", "GPU"),
    ("-o new.npy --alpha x", "is not a number"), ("-o new.npy --alpha -1e39", "is beyond the largest float32"),
    ("-o new.npy --json gone/a.json", "gone"), ("-o new.npy --json new.npy.journal", "new.npy.journal")])
def test_what_the_command_refuses(words: str, says: str, folder: Path, run: Any) -> None:  # noqa: F811
    before = there(folder)
    code, said, complained = run("multiply", "a.npy", "b.npy", *words.split())
    assert (code, said) == (2, "") and re.search(says, " ".join(complained.split())), complained
    assert there(folder) == before


def test_the_command(folder: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Links of the output and of --json; devices by their variable."""
    monkeypatch.setenv("PEAKGEMM_DEVICES", "all")
    Path("link.npy").symlink_to("inner/real.npy")
    Path("link.json").symlink_to("inner/real.json")
    assert run("multiply", "a.npy", "b.npy", "-o", "link.npy", "--json", "inner/real.npy.journal")[0] == 2
    code, said, _ = run("multiply", "a.npy", "b.npy", "-o", "link.npy", "--alpha", "-inf", "--json", "link.json")
    assert code == 0 and said.startswith("link.npy: 60 x 30 x 40 in")
    assert Path("link.npy").is_symlink() and Path("link.json").is_symlink() and Path("inner/real.npy").exists()
    assert valid(Path("inner/real.json"))["found"][0]["shape"] == [60, 30, 40]
    with np.errstate(invalid="ignore"):
        want = np.float32("-inf") * (np.load("a.npy") @ np.load("b.npy"))
    assert np.array_equal(np.load("link.npy"), want, equal_nan=True)
