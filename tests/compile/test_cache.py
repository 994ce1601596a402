"""The cache on disk under damage, strangers, full disks and many processes; compilations shared and announced."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from commands import run  # noqa: F401
from peakgemm.errors import CompileFailed, InvalidValue
from peakgemm.kernels.library import recipes
from peakgemm.kernels.recipe import Recipe
from peakgemm.problem import Problem
from peakgemm.runtime import cache, nvrtc
from peakgemm.runtime import compile as compiler
from peakgemm.runtime.compile import compile_source
from peakgemm.selection.choose import choose, warm_set
from scale import SCALE, files, scale

posix = pytest.mark.skipif(os.name == "nt", reason="POSIX permissions and limits")


# Damage


def _wrong_number(code: Path, facts: Path) -> None:
    record = json.loads(facts.read_text())
    record["facts"]["registers"] += 1
    facts.write_text(json.dumps(record))


DAMAGE = {
    "binary emptied": lambda code, facts: code.write_bytes(b""),
    "binary altered": lambda code, facts: code.write_bytes(code.read_bytes()[:-1] + b"\x77"),
    "facts cut off": lambda code, facts: facts.write_bytes(facts.read_bytes()[:-1]),
    "facts no text": lambda code, facts: facts.write_bytes(b"\xff\xfe\x00"),
    "facts without digest": lambda code, facts: facts.write_text('{"registers": 1}'),
    "facts wrong": _wrong_number,
}


@posix
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_entry_is_compiled_anew(cold: Path, programs: SimpleNamespace, said: list[str], damage) -> None:
    before = os.umask(0)
    try:
        first = scale()
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o77 for path in (cold, cold / "entries", *files(cold))} == {0}  # private
    damage(*sorted(files(cold), key=lambda file: file.read_bytes().startswith(b"{")))
    assert [scale(), programs.count] == [first, 2]
    assert len(said) == 1 and f"a damaged entry in the compile cache {cold}" in said[0]
    assert [scale(), programs.count] == [first, 2]  # mended


def test_an_entry_that_the_driver_refuses_is_made_again(cold: Path, programs: SimpleNamespace) -> None:
    fresh, before = scale(), files(cold)
    assert fresh.remake is None  # this process compiled it
    assert scale().remake() == fresh
    assert (programs.count, files(cold)) == (2, before)


# Folders of others, and disks that do not serve: each call compiles, and the reason is said once


def _of_a_stranger(folder: Path, patch: pytest.MonkeyPatch) -> None:
    user = os.geteuid()
    if user == 0:  # whose folders anyone trusts
        os.chown(folder, 12345, -1)
    else:
        patch.setattr(os, "geteuid", lambda: user + 1)


def _in_the_way(folder: Path, patch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(folder)
    folder.write_text("in the way")


def _failing(owner: object, call: str, number: int) -> Callable[[Path, pytest.MonkeyPatch], None]:
    def use(folder: Path, patch: pytest.MonkeyPatch) -> None:
        real = getattr(owner, call)

        def fail(*args, **kwargs):
            if folder in Path(kwargs.get("dir", args[0] if args else ".")).parents:
                raise OSError(number, os.strerror(number))
            return real(*args, **kwargs)

        patch.setattr(owner, call, fail)
    return use


@posix
@pytest.mark.parametrize(("spoil", "compiled", "says"), [
    (lambda folder, patch: folder.chmod(0o720), 4, ["other users may write to {}. Run: chmod go-w {}"]),
    (lambda folder, patch: (folder / "entries").chmod(0o777), 4, ["other users may write to {}/entries. Run: chmod"]),
    (_of_a_stranger, 4, ["{} belongs to user ", "Set PEAKGEMM_CACHE_DIR"]),
    (_in_the_way, 4, ["no compile cache in {}", "Set PEAKGEMM_CACHE_DIR"]),
    (_failing(tempfile, "mkstemp", errno.EROFS), 3, ["{} (Read-only file system)"]),  # what is there is read
    (_failing(Path, "read_bytes", errno.EIO), 4, ["{} (Input/output error)"]),
], ids=["open to others", "entries open", "a stranger's", "no folder", "read-only", "unreadable"])
def test_a_cache_that_does_not_serve(cold: Path, programs: SimpleNamespace, said: list[str],
                                     monkeypatch: pytest.MonkeyPatch, spoil, compiled: int, says: list[str]) -> None:
    first = scale(3)
    spoil(cold, monkeypatch)
    assert scale(3) == first and scale(4) == scale(4) != first
    assert (programs.count, len(said)) == (compiled, 1)
    for text in says:
        assert text.replace("{}", str(cold)) in said[0]
    if spoil is _of_a_stranger:
        with pytest.raises(InvalidValue, match=f"{cold}: .* belongs to user"):
            cache.clear()


SMALL_DISK = f"""
import resource
from pathlib import Path
from peakgemm.runtime import cache
from peakgemm.runtime.compile import compile_source
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))  # bytes: writes stop midway
made = [compile_source({SCALE!r}, "scale", "sm_90", {{"FACTOR": f}}) for f in (3, 4, 3)]
assert made[0] == made[2] != made[1]
assert all(c.remake is None and len(c.code) > 1000 for c in made)  # compiled, all three
print(sum(f.is_file() for f in cache.folder().rglob("*")))
"""


@posix
def test_writes_that_stop_midway_leave_nothing(cold: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SMALL_DISK], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    line, = done.stderr.splitlines()
    assert f"{cold} (File too large)" in line


# Size and keys


def test_what_was_used_least_recently_goes(cold: Path, programs: SimpleNamespace,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    for factor, age in ((3, 9000), (4, 6000)):
        scale(factor)
        for file in files(cold):
            if file.stat().st_mtime > time.time() - 3000:
                os.utime(file, (time.time() - age,) * 2)
    (cold / "entries" / "0a").mkdir()
    left = [cold / "entries" / ".aside", cold / "entries" / "0a" / "earlier"]  # a killed process, an earlier layout
    for file in left:
        file.write_bytes(bytes(100))
        os.utime(file, (time.time() - 8000,) * 2)
    scale(3)  # read: now the one used last
    assert programs.count == 2
    monkeypatch.setattr(cache, "MAX_BYTES", cache.usage(cold)[1])
    scale(5)
    assert cache.usage(cold)[1] <= cache.MAX_BYTES
    assert not any(file.exists() for file in left)
    assert [scale(factor).remake is not None for factor in (3, 5, 4)] == [True, True, False]


@pytest.mark.parametrize(("names", "identity"), [
    ("cuda_bindings-13.5.0 nvidia_cuda_nvrtc-13.4.92 numpy-2.4.6", "cuda_bindings-13.5.0 nvidia_cuda_nvrtc-13.4.92"),
    ("cuda_bindings-12.9.4 nvidia_cuda_nvrtc_cu12-12.9.86", "cuda_bindings-12.9.4 nvidia_cuda_nvrtc_cu12-12.9.86"),
    # Of no distribution that the bindings load: it is asked.
    ("cuda_bindings-13.5.0", "NVRTC loaded cuda_bindings-13.5.0"),
    ("cuda_bindings-12.9.4 nvidia_cuda_nvrtc-13.4.92", "NVRTC loaded cuda_bindings-12.9.4 nvidia_cuda_nvrtc-13.4.92")])
def test_the_key_names_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: str, identity: str) -> None:
    for name in names.split():
        (tmp_path / f"{name}.dist-info").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", ["gone", str(tmp_path)])
        patch.setattr(nvrtc, "nvrtc_version", lambda: "loaded")
        words = nvrtc.identity.__wrapped__().replace(".dist-info", "")
    assert words == identity


@pytest.mark.parametrize(("text", "hit"), [(SCALE + "  // It scales.", True), ("\n" + SCALE, False)],
                         ids=["comment", "line"])  # lines are in the code's line information
def test_what_is_the_same_compilation(cold: Path, programs: SimpleNamespace, text: str, hit: bool) -> None:
    first, second = (compile_source(each, "scale", "sm_90", {"FACTOR": 3}) for each in (SCALE, text))
    assert (first == second, second.remake is not None, programs.count) == (hit, hit, 2 - hit)


# Many processes and threads


WORKER = f"""
import hashlib, sys
from peakgemm.runtime import compile as compiler
compiler.ANNOUNCE_AFTER = 300  # many on few cores take long
sys.stdin.readline()  # all start together
for factor in range(3):
    c = compiler.compile_source({SCALE!r}, "scale", "sm_90", {{"FACTOR": factor + 2}}, name="scale.cu")
    print(hashlib.sha256(c.code).hexdigest(), c.registers)
"""


def test_processes_on_a_cold_cache(cold: Path, programs: SimpleNamespace) -> None:
    workers = [subprocess.Popen([sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True) for _ in range(4)]
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    printed = [worker.communicate(timeout=300) for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 4, printed
    assert len(set(printed)) == 1 and printed[0][1] == ""
    assert len(files(cold)) == 6  # three binaries, three facts, nothing half-written
    assert len({scale(factor).code for factor in (2, 3, 4)}) == 3 and programs.count == 0


def test_threads_share_a_compilation(cold: Path, programs: SimpleNamespace) -> None:
    """The others ask while the first compiles."""
    programs.meanwhile = lambda: time.sleep(0.5)
    with ThreadPoolExecutor(4) as pool:
        shared = list(pool.map(lambda _: scale(), range(4)))
    assert programs.count == 1
    assert all(each == shared[0] for each in shared)
    assert sum(each.remake is None for each in shared) > 1  # not from the disk


def test_a_failure_is_not_kept(cold: Path, programs: SimpleNamespace) -> None:
    def fail() -> None:
        raise RuntimeError("out of luck")

    programs.meanwhile = fail
    with pytest.raises(CompileFailed, match="out of luck"):
        scale()
    programs.meanwhile = lambda: None
    assert scale().entry == "scale" and programs.count == 2


def test_a_long_compilation_says_so_meanwhile(cold: Path, programs: SimpleNamespace, said: list[str],
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "ANNOUNCE_AFTER", 0.1)
    monkeypatch.setitem(compiler._silence, "said", 0)
    heard = []

    def listen() -> None:
        for _ in range(1000):
            if said:
                break
            threading.Event().wait(0.01)
        heard.extend(said)  # while the compilation is still under way

    programs.meanwhile = listen
    scale(3)
    assert len(heard) == 1 and "compiling scale.cu for sm_90" in heard[0] and str(cold) in heard[0]
    programs.meanwhile = lambda: threading.Event().wait(0.3)
    scale(4)
    assert len(said) == 1  # once is enough


# The command line


def test_clear_leaves_what_is_not_ours_and_tuning_entries_unless_told(cold: Path, run) -> None:  # noqa: F811
    scale()
    (cold / "tuned").mkdir()
    others = [cold / "notes.txt", cold / "tuned" / "notes.txt", cold / "tuned" / "one.json"]
    for file in others:
        file.write_text("{}")
    for words, left in ((), others), (("--tuned",), others[:2]):
        assert run("cache", "clear", *words)[0] == 0
        assert files(cold) == left


def test_warm(cold: Path, programs: SimpleNamespace, run, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    made = [Recipe(SCALE, "scale", "sm_90", {"FACTOR": factor}, "scale.cu") for factor in (2, 3, 4)]
    monkeypatch.setattr("peakgemm.selection.choose.warm_set", lambda arch: made)
    for new in (3, 0):
        assert run("cache", "warm", "--arch", "sm_90") == (0, f"{cold}: 3 kernels for sm_90, {new} of them new\n", "")
    assert programs.count == 3
    monkeypatch.setenv("PEAKGEMM_CACHE_DIR", str(files(cold)[0]))  # a file is in the way
    code, _, err = run("cache", "warm", "--arch", "sm_90")
    assert code == 2 and "nothing would be kept: " in err and "Set PEAKGEMM_CACHE_DIR" in err


def test_what_is_warmed_is_all_that_a_first_call_compiles() -> None:
    """Partial sums, and repacked operands; of the set, the kernels of every launch."""
    problem = Problem.contiguous(4095, 4095, 4095)
    choice = choose(problem, "sm_90", 132)
    wanted = recipes(choice.kernel, choice.config, problem, "sm_90", 132)
    assert [made.entry for made in wanted] == ["ffma_first_chunk", "ffma_wide", "ffma_reduce"]
    assert set(wanted) <= set(warm_set("sm_90"))
    assert "ffma_first_chunk" not in {made.entry for made in warm_set("sm_75")}
