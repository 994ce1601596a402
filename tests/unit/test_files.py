"""Products of .npy files: complete or absent, resumed after a kill, refused where an input has changed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import peakgemm as pg
from lazy_driver import Devices, each_begins, present
from peakgemm.calls.host import files, journal
from peakgemm.errors import InvalidValue

A, B, OUT, JOURNAL, PARTIAL = map(Path, ("a.npy", "b.npy", "c.npy", "c.npy.journal", "c.npy.partial"))


@pytest.fixture
def want(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A and B lie in the current folder; what C must be. Sums are exact."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((200, 90), (90, 260)))
    for path, x in ((A, a), (B, b), (Path("row.npy"), np.arange(260, dtype=np.float32))):
        np.save(path, x)
    return a @ b


def multiply(**more: Any) -> Any:
    """In 24 tiles."""
    return pg.multiply_files(A, B, OUT, **{"blocks": (50,), **more})


def complete(want: Any) -> bool:
    """Whether C is right, and nothing lies beside it."""
    return list(Path().glob("c.npy*")) == [OUT] and np.array_equal(np.load(OUT), want, equal_nan=True)


def tiles() -> list[int]:
    """Those that the journal names, in order."""
    return [json.loads(line)["tile"] for line in JOURNAL.read_bytes().split(b"\n")[1:-1]] if JOURNAL.exists() else []


class Stopped(Exception):
    pass


def stop_after(count: int, **more: Any) -> None:
    """A product that ends after ``count`` tiles."""
    def stop(done: int, total: int) -> None:
        if len(tiles()) == count:
            raise Stopped

    with pytest.raises(Stopped):
        multiply(progress=stop, **more)


def test_a_product(want: Any) -> None:
    seen: list[tuple[int, int]] = []
    said = multiply(progress=lambda *x: seen.append(x))
    assert complete(want) and np.load(OUT).flags.c_contiguous
    assert (said.computed, said.found) == (len(seen), 0) and said.computed >= 16
    assert seen[-1] == (want.size, want.size) and said.flops == 2 * 200 * 260 * 90


def test_scales_transposes_and_rows(want: Any) -> None:
    np.save("at.npy", np.load(A).T.copy())
    np.save("bt.npy", np.asfortranarray(np.load(B)))
    pg.multiply_files("at.npy", "bt.npy", OUT, c="row.npy", alpha=2, beta=-1, trans_a=True, blocks=(50,))
    assert complete(2 * want - np.load("row.npy"))
    with pytest.raises(InvalidValue, match=r"c\.npy is there already; name another output, or pass overwrite"):
        multiply()
    multiply(overwrite=True)
    assert complete(want)


def test_memmaps_as_operands_and_out(want: Any) -> None:
    result = np.lib.format.open_memmap(OUT, "w+", np.float32, want.shape)
    assert pg.matmul(np.load(A, mmap_mode="r"), np.load(B, mmap_mode="r"), out=result, devices="all") is result
    assert complete(want)


@pytest.mark.parametrize("count", [1, 2])
def test_on_devices(want: Any, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    with present(monkeypatch, Devices(count)) as devices, monkeypatch.context() as patch:
        each_begins(patch, count)
        said = multiply(devices="all")
        assert complete(want) and said.where == " and ".join(["stand-in"] * count)
        assert {index for index, _ in devices.problems} == set(range(count))


CHILD = """
import time
import peakgemm as pg
print("begun", flush=True)
said = pg.multiply_files("a.npy", "b.npy", "c.npy", blocks=(50,), progress=lambda done, total: time.sleep(0.03))
print(said.computed, said.found)
"""


def child() -> subprocess.Popen[str]:
    """A process that has begun the product, and takes 0.7 s for it."""
    process = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    return process


def test_killed_at_random_and_resumed(want: Any) -> None:
    chance, finished = random.Random(1), 0
    for _ in range(3):
        process, until = child(), finished + chance.randrange(4)
        while len(tiles()) < until:
            assert process.poll() is None
        time.sleep(chance.uniform(0.0, 0.03))
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not OUT.exists()
        done = tiles()
        assert len(done) == len(set(done)) >= finished  # no tile twice, none lost
        finished = len(done)
    said, _ = child().communicate(timeout=60)
    computed, found = map(int, said.split())
    assert found == finished > 0 and computed + found >= 16 and complete(want)


def test_one_process_at_a_time(want: Any) -> None:
    process = child()
    while not tiles():
        time.sleep(0.005)
        assert process.poll() is None
    with pytest.raises(InvalidValue, match=r"another process works on .*c\.npy; wait for it"):
        multiply()
    process.communicate(timeout=60)
    assert process.returncode == 0 and complete(want)


def other_bytes() -> None:
    with PARTIAL.open("r+b") as file:
        file.seek(200)
        file.write(b"\x01\x02\x03")


def cut(size: int) -> Callable[[], None]:
    return lambda: os.truncate(JOURNAL, JOURNAL.stat().st_size - size)


@pytest.mark.parametrize(("spoil", "found"), [
    (PARTIAL.unlink, 0), (lambda: os.truncate(PARTIAL, 0), 0), (other_bytes, 5), (lambda: None, 6),
    (cut(1), 5), (cut(30), 5), (cut(60), 4)])
def test_what_is_not_what_the_journal_says_is_computed_again(want: Any, spoil: Any, found: int) -> None:
    stop_after(6)
    spoil()
    assert multiply().found == found and complete(want)


def test_killed_after_the_last_step(want: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(journal.Journal, "remove", lambda self: None)
        multiply()
    assert OUT.exists() and JOURNAL.exists()
    assert multiply().computed == 0 and complete(want)


@pytest.mark.parametrize(("change", "options", "says"), [
    (lambda: np.save(A, np.load(A) + 1), {}, r"c\.npy\.journal is of another product: a has mtime_ns \d+, and had \d+ "
     r"when it began; remove .*c\.npy\.journal and .*c\.npy\.partial to begin anew"),
    (lambda: None, {"alpha": 2}, r"alpha is 2\.0, and was 1\.0 when it began"),
    (lambda: JOURNAL.write_text("{}\n"), {}, "no journal of this version"),
    (JOURNAL.unlink, {}, r"c\.npy\.partial is there, without a journal")])
def test_another_product_does_not_resume_it(want: Any, change: Any, options: Any, says: str) -> None:
    stop_after(3)
    change()
    before = PARTIAL.read_bytes()
    with pytest.raises(InvalidValue, match=says):
        multiply(**options)
    assert not OUT.exists() and PARTIAL.read_bytes() == before


def test_scales_that_are_not_equal_to_themselves(want: Any) -> None:
    nan = {"c": "row.npy", "alpha": float("nan"), "beta": float("nan")}
    stop_after(1, **nan)
    with pytest.raises(InvalidValue, match=r"alpha is 0\.0, and was nan when it began"):
        multiply(**nan | {"alpha": 0})
    assert multiply(**nan).found == 1 and complete(want * np.nan)


def test_an_input_that_changes_while_it_is_read(want: Any) -> None:
    with pytest.raises(InvalidValue, match="an input changed while it was read"):
        multiply(progress=lambda *x: os.utime(A, (1, 1)))
    assert not OUT.exists()


@pytest.mark.parametrize("on_a_device", [False, True])
@pytest.mark.parametrize(("module", "call", "room", "says"), [
    (files, "_allocate", 0, r"no room for .*\.partial: 208,000 bytes wanted \(No space left on device\), [\d,]+ free"),
    (journal.os, "write", 0, r"cannot write .*\.journal \(No space left on device\); what is finished stays"),
    (journal.os, "write", 6, r"cannot write .*\.journal \(No space left on device\); what is finished stays")])
def test_a_full_disk(want: Any, monkeypatch: pytest.MonkeyPatch, module: Any, call: str, room: int, says: str,
                     on_a_device: bool) -> None:
    """After ``room`` writes; the journal's first line is one, and each tile's another."""
    made, real = list[Any](), getattr(module, call)

    def full(*args: Any) -> Any:
        if len(made) >= room:
            raise OSError(28, "No space left on device")
        made.append(args)
        return real(*args)

    with present(monkeypatch, Devices(int(on_a_device))), monkeypatch.context() as patch:
        patch.setattr(module, call, full)
        with pytest.raises(InvalidValue, match=says):
            multiply(devices="all")
    kept = max(0, room - 1)
    assert not OUT.exists() and len(tiles()) == kept and (call == "write" or not PARTIAL.exists())
    assert multiply().found == kept and complete(want)
