"""Products of .npy files: complete or absent, resumed after a kill, refused where an input has changed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import peakgemm as pg
from lazy_driver import Devices, each_begins, present
from peakgemm.calls.host import files, journal
from peakgemm.errors import InvalidValue

SHAPE, BLOCKS = (200, 260, 90), (50,)


@pytest.fixture
def inputs(tmp_path: Path) -> tuple[Path, Path, Path, Any]:
    """Paths of A, B and C, and what C must be; values whose sums are exact."""
    rng, (m, n, k) = np.random.default_rng(0), SHAPE
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    return tmp_path / "a.npy", tmp_path / "b.npy", tmp_path / "c.npy", a @ b


def beside(out: Path) -> list[str]:
    return sorted(path.name for path in out.parent.iterdir() if path.name.startswith(out.name))


def test_a_product(inputs: tuple[Path, Path, Path, Any]) -> None:
    a, b, out, want = inputs
    seen: list[tuple[int, int]] = []
    said = pg.multiply_files(a, b, out, blocks=BLOCKS, progress=lambda *x: seen.append(x))
    assert (np.load(out) == want).all() and np.load(out).flags.c_contiguous
    assert beside(out) == ["c.npy"] and (said.computed, said.found) == (len(seen), 0) and said.computed >= 16
    assert seen[-1] == (want.size, want.size) and said.flops == 2 * 200 * 260 * 90


def test_scales_transposes_and_rows(inputs: tuple[Path, Path, Path, Any]) -> None:
    a, b, out, want = inputs
    row = np.arange(260, dtype=np.float32)
    turned, column_major, bias = (out.with_name(name) for name in ("at.npy", "bt.npy", "bias.npy"))
    np.save(turned, np.load(a).T.copy())
    np.save(column_major, np.asfortranarray(np.load(b)))
    np.save(bias, row)
    pg.multiply_files(turned, column_major, out, c=bias, alpha=2, beta=-1, trans_a=True, blocks=BLOCKS)
    assert (np.load(out) == 2 * want - row).all()
    with pytest.raises(InvalidValue, match=r"c\.npy is there already; name another output, or pass overwrite"):
        pg.multiply_files(a, b, out)
    pg.multiply_files(a, b, out, overwrite=True, blocks=BLOCKS)
    assert (np.load(out) == want).all() and beside(out) == ["c.npy"]


def test_memmaps_as_operands_and_out(inputs: tuple[Path, Path, Path, Any]) -> None:
    a, b, out, want = inputs
    result = np.lib.format.open_memmap(out, "w+", np.float32, want.shape)
    assert pg.matmul(np.load(a, mmap_mode="r"), np.load(b, mmap_mode="r"), out=result, devices="all") is result
    assert (np.load(out) == want).all()


@pytest.mark.parametrize("count", [1, 2])
def test_on_devices(inputs: tuple[Path, Path, Path, Any], monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    a, b, out, want = inputs
    with present(monkeypatch, Devices(count)) as devices, monkeypatch.context() as patch:
        each_begins(patch, count)
        said = pg.multiply_files(a, b, out, devices="all", blocks=BLOCKS)
        assert (np.load(out) == want).all() and said.where == " and ".join(["stand-in"] * count)
        assert {index for index, _ in devices.problems} == set(range(count))


def test_a_full_disk_for_the_journal_on_a_device(inputs: tuple[Path, Path, Path, Any],
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, out, want = inputs
    add, seen = journal.Journal.add, [0]

    def full(self: Any, tile: int, checksum: int) -> None:
        seen[0] += 1
        if seen[0] > 5:
            raise InvalidValue("cannot write the journal")
        add(self, tile, checksum)

    with present(monkeypatch, Devices(1)), monkeypatch.context() as patch:
        patch.setattr(journal.Journal, "add", full)
        with pytest.raises(InvalidValue, match="cannot write the journal"):
            pg.multiply_files(a, b, out, blocks=BLOCKS)
    assert not out.exists() and len(lines(out)) == 5
    assert pg.multiply_files(a, b, out, blocks=BLOCKS).found == 5 and (np.load(out) == want).all()


CHILD = """
    import sys, time
    import peakgemm as pg
    a, b, out = sys.argv[1:]
    multiply = pg.multiply_files
    print("begun", flush=True)
    said = multiply(a, b, out, blocks=(50,), progress=lambda done, total: time.sleep(0.05))
    print("computed", said.computed, said.found)
"""


def lines(out: Path) -> list[int]:
    """The tiles that the journal names, in order."""
    path = out.with_name(out.name + ".journal")
    if not path.exists():
        return []
    return [json.loads(line)["tile"] for line in path.read_bytes().split(b"\n")[1:-1]]


def test_killed_at_random_and_resumed(inputs: tuple[Path, Path, Path, Any]) -> None:
    a, b, out, want = inputs
    chance, kills, finished = random.Random(1), 0, 0
    code = textwrap.dedent(CHILD)
    for _ in range(40):
        child = subprocess.Popen([sys.executable, "-c", code, *map(str, (a, b, out))], stdout=subprocess.PIPE,
                                 text=True)
        assert child.stdout is not None and child.stdout.readline() == "begun\n"
        try:
            if kills < 5:
                child.wait(chance.uniform(0.0, 0.15))
            else:
                child.wait(60)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            child.wait()
            kills += 1
            assert not out.exists()
            done = lines(out)
            assert len(done) == len(set(done)) and len(done) >= finished  # no tile twice, none lost
            finished = len(done)
            continue
        assert child.returncode == 0
        said = child.stdout.read().split()
        break
    assert kills == 5 and finished > 0
    assert int(said[2]) == finished and int(said[1]) + int(said[2]) >= 16
    assert (np.load(out) == want).all() and beside(out) == ["c.npy"]


class Stopped(Exception):
    pass


def stopped_after(count: int, inputs: tuple[Path, Path, Path, Any]) -> Path:
    """A product that ends after ``count`` tiles; its journal."""
    a, b, out, _ = inputs
    seen = [0]

    def stop(done: int, total: int) -> None:
        seen[0] += 1
        if seen[0] == count:
            raise Stopped

    with pytest.raises(Stopped):
        pg.multiply_files(a, b, out, blocks=BLOCKS, progress=stop)
    return out.with_name("c.npy.journal")


def other_bytes(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(200)
        file.write(b"\x01\x02\x03")


@pytest.mark.parametrize(("spoil", "found"), [(Path.unlink, 0), (lambda path: path.write_bytes(b""), 0),
                                              (other_bytes, 5)])
def test_a_partial_output_that_is_not_what_the_journal_says(inputs: tuple[Path, Path, Path, Any], spoil: Any,
                                                           found: int) -> None:
    a, b, out, want = inputs
    stopped_after(6, inputs)
    spoil(out.with_name("c.npy.partial"))
    assert pg.multiply_files(a, b, out, blocks=BLOCKS).found == found
    assert (np.load(out) == want).all() and beside(out) == ["c.npy"]


@pytest.mark.parametrize("cut", [1, 10, 30, 60])
def test_a_journal_cut_at_any_byte(inputs: tuple[Path, Path, Path, Any], cut: int) -> None:
    a, b, out, want = inputs
    path = stopped_after(6, inputs)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    said = pg.multiply_files(a, b, out, blocks=BLOCKS)
    assert (np.load(out) == want).all() and said.found == whole[:-cut].count(b"\n") - 1 < 6


def test_killed_after_the_last_step(inputs: tuple[Path, Path, Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, out, want = inputs
    with monkeypatch.context() as patch:
        patch.setattr(journal.Journal, "remove", lambda self: None)
        pg.multiply_files(a, b, out, blocks=BLOCKS)
    assert beside(out) == ["c.npy", "c.npy.journal"]
    assert pg.multiply_files(a, b, out, blocks=BLOCKS).computed == 0
    assert (np.load(out) == want).all() and beside(out) == ["c.npy"]


def test_an_input_that_changed_between_runs(inputs: tuple[Path, Path, Path, Any]) -> None:
    a, b, out, _ = inputs
    stopped_after(3, inputs)
    np.save(a, np.load(a) + 1)
    says = (r"c\.npy\.journal is of another product: a has mtime_ns \d+, and had \d+ when it began; remove "
            r".*c\.npy\.journal and .*c\.npy\.partial to begin anew")
    with pytest.raises(InvalidValue, match=says):
        pg.multiply_files(a, b, out, blocks=BLOCKS)
    assert not out.exists() and len(lines(out)) == 3


def test_an_input_that_changes_while_it_is_read(inputs: tuple[Path, Path, Path, Any]) -> None:
    a, b, out, _ = inputs
    with pytest.raises(InvalidValue, match="an input changed while it was read"):
        pg.multiply_files(a, b, out, blocks=BLOCKS, progress=lambda *x: os.utime(a, (1, 1)))
    assert not out.exists()


def test_another_product(inputs: tuple[Path, Path, Path, Any]) -> None:
    a, b, out, _ = inputs
    stopped_after(3, inputs)
    with pytest.raises(InvalidValue, match=r"alpha is 2\.0, and was 1\.0 when it began"):
        pg.multiply_files(a, b, out, alpha=2, blocks=BLOCKS)
    out.with_name("c.npy.journal").write_text("{}\n")
    with pytest.raises(InvalidValue, match="no journal of this version"):
        pg.multiply_files(a, b, out, blocks=BLOCKS)
    out.with_name("c.npy.journal").unlink()
    with pytest.raises(InvalidValue, match=r"c\.npy\.partial is there, without a journal"):
        pg.multiply_files(a, b, out, blocks=BLOCKS)


def test_scales_that_are_not_equal_to_themselves(inputs: tuple[Path, Path, Path, Any]) -> None:
    a, b, out, _ = inputs
    nan = float("nan")

    def multiply(**more: Any) -> Any:
        return pg.multiply_files(a, b, out, c=a.with_name("row.npy"), alpha=nan, beta=nan, blocks=BLOCKS, **more)

    np.save(a.with_name("row.npy"), np.ones(260, np.float32))

    def stop(done: int, total: int) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        multiply(progress=stop)
    with pytest.raises(InvalidValue, match=r"alpha is 0\.0, and was nan when it began"):
        pg.multiply_files(a, b, out, c=a.with_name("row.npy"), alpha=0, beta=nan)
    assert multiply().found == 1 and np.isnan(np.load(out)).all() and beside(out) == ["c.npy"]


def test_a_full_disk(inputs: tuple[Path, Path, Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, out, want = inputs

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files, "_allocate", full)
        with pytest.raises(InvalidValue, match=r"no room for .*c\.npy\.partial: 208,000 bytes wanted \(No space left "
                                               r"on device\), [\d,]+ free now"):
            pg.multiply_files(a, b, out)
    assert beside(out) == []
    with monkeypatch.context() as patch:
        patch.setattr(journal.os, "write", full)
        with pytest.raises(InvalidValue, match=r"cannot write .*c\.npy\.journal \(No space left on device\); what is "
                                               "finished stays"):
            pg.multiply_files(a, b, out, blocks=BLOCKS)
    assert not out.exists()
    pg.multiply_files(a, b, out, blocks=BLOCKS)
    assert (np.load(out) == want).all()


@pytest.mark.skipif(not os.access("/proc/mounts", os.R_OK) or os.geteuid() != 0 or shutil.which("mount") is None,
                    reason="needs root and mount, for a small disk")
def test_a_disk_that_is_really_full(inputs: tuple[Path, Path, Path, Any], tmp_path: Path) -> None:
    a, b, _, _ = inputs
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(small)], check=False).returncode:
        pytest.skip("cannot mount")
    try:
        with pytest.raises(InvalidValue, match=r"208,000 bytes wanted"):
            pg.multiply_files(a, b, small / "c.npy")
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_one_process_at_a_time(inputs: tuple[Path, Path, Path, Any]) -> None:
    a, b, out, want = inputs
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(CHILD), *map(str, (a, b, out))],
                             stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.readline()
    while not lines(out):
        time.sleep(0.005)
        assert child.poll() is None
    with pytest.raises(InvalidValue, match=r"another process works on .*c\.npy; wait for it"):
        pg.multiply_files(a, b, out, blocks=BLOCKS)
    assert child.wait(60) == 0 and (np.load(out) == want).all()
    child.stdout.close()
