"""The cache on disk under damage, strangers, full disks and many processes; compilations shared and announced."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from peakgemm import cli
from peakgemm.errors import CompileFailed, InvalidValue
from peakgemm.kernels.recipe import Recipe
from peakgemm.problem import Problem
from peakgemm.runtime import cache, nvrtc
from peakgemm.runtime import compile as compiler
from peakgemm.runtime.compile import compile_source
from scale import SCALE, files, scale


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has announced nothing yet, and finds a tenth of a second long."""
    monkeypatch.setattr(compiler, "ANNOUNCE_AFTER", 0.1)
    monkeypatch.setitem(compiler._silence, "said", 0)


def halves(folder: Path) -> tuple[Path, Path]:
    """Binary and facts of the one entry."""
    first, second = sorted(files(folder), key=lambda f: f.read_bytes().startswith(b"{"))
    return first, second


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


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_entry_is_compiled_anew(cold: Path, programs: SimpleNamespace, said: list[str], damage) -> None:
    first = scale()
    damage(*halves(cold))
    assert scale() == first
    assert programs.count == 2
    assert said == [f"peakgemm: a damaged entry in the compile cache {cold} is compiled anew."]
    assert scale() == first  # mended
    assert programs.count == 2


# Folders


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
class TestPrivacy:
    def test_what_is_made_is_private(self, cold: Path) -> None:
        before = os.umask(0)
        try:
            scale()
        finally:
            os.umask(before)
        for folder in (cold, cold / "entries"):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert [stat.S_IMODE(file.stat().st_mode) for file in files(cold)] == [0o600, 0o600]

    @pytest.mark.parametrize("mode", [0o720, 0o777], ids=oct)
    @pytest.mark.parametrize("part", [".", "entries"])
    def test_a_folder_open_to_others_is_not_read(self, cold: Path, programs: SimpleNamespace, said: list[str],
                                                 mode: int, part: str) -> None:
        first = scale()
        before = files(cold)
        (cold / part).chmod(mode)
        assert scale() == scale() == first
        assert programs.count == 3
        assert files(cold) == before
        assert len(said) == 1
        assert f"other users may write to {cold / part}. Run: chmod go-w {cold / part}" in said[0]

    def test_a_strangers_folder_is_not_read(self, cold: Path, programs: SimpleNamespace, said: list[str],
                                            monkeypatch: pytest.MonkeyPatch) -> None:
        scale()
        me = os.geteuid()
        if me == 0:
            os.chown(cold, 12345, -1)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: me + 1)
        scale()
        assert programs.count == 2
        assert len(said) == 1
        assert f"{cold} belongs to user {12345 if me == 0 else me}" in said[0]
        assert "Set PEAKGEMM_CACHE_DIR" in said[0]
        with pytest.raises(InvalidValue, match=f"cannot clear the compile cache in {cold}: .* belongs to user"):
            cache.clear()


def test_a_folder_that_cannot_be_made(cold: Path, programs: SimpleNamespace, said: list[str]) -> None:
    cold.write_text("in the way")
    assert scale() == scale()
    assert programs.count == 2
    assert len(said) == 1
    assert f"no compile cache in {cold}" in said[0] and "Set PEAKGEMM_CACHE_DIR" in said[0]


def test_a_read_only_disk_is_read(cold: Path, programs: SimpleNamespace, said: list[str],
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    first = scale(3)

    def refuse(*args, **kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    assert scale(3) == first
    assert programs.count == 1
    assert scale(4) == scale(4) != first
    assert scale(5) != first
    assert programs.count == 4
    assert said == [f"peakgemm: cannot write the compile cache in {cold} (Read-only file system); "
                    "going on without it."]


def test_a_disk_that_cannot_be_read(cold: Path, programs: SimpleNamespace, said: list[str],
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    read = Path.read_bytes

    def fail(self):
        if cold in self.parents:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(self)

    scale()
    monkeypatch.setattr(Path, "read_bytes", fail)
    assert scale() == scale()
    assert programs.count == 3
    assert said == [f"peakgemm: cannot read the compile cache in {cold} (Input/output error); going on without it."]


SMALL_DISK = f"""
import resource
from pathlib import Path
from peakgemm.runtime import cache
from peakgemm.runtime.compile import compile_source
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))  # bytes: writes stop midway
found = [compile_source({SCALE!r}, "scale", "sm_90", {{"FACTOR": f}}) for f in (3, 4, 3)]
assert found[0] == found[2] != found[1]
assert all(c.remake is None and len(c.code) > 1000 for c in found)  # compiled, all three
print(sum(f.is_file() for f in cache.folder().rglob("*")))
"""


@pytest.mark.skipif(os.name == "nt", reason="POSIX limits")
def test_writes_that_stop_midway_leave_nothing(cold: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SMALL_DISK], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    assert done.stderr.splitlines() == [
        f"peakgemm: cannot write the compile cache in {cold} (File too large); going on without it."]


# Size


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


# Keys


@pytest.mark.parametrize(("names", "identity"), [
    ("cuda_bindings-13.5.0 nvidia_cuda_nvrtc-13.4.92 numpy-2.4.6", "cuda_bindings-13.5.0 nvidia_cuda_nvrtc-13.4.92"),
    ("cuda_bindings-12.9.4 nvidia_cuda_nvrtc_cu12-12.9.86", "cuda_bindings-12.9.4 nvidia_cuda_nvrtc_cu12-12.9.86"),
    # Of no distribution that the bindings load: it is asked.
    ("cuda_bindings-13.5.0", "NVRTC loaded cuda_bindings-13.5.0"),
    ("cuda_bindings-12.9.4 nvidia_cuda_nvrtc-13.4.92", "NVRTC loaded cuda_bindings-12.9.4 nvidia_cuda_nvrtc-13.4.92"),
    ("cuda_bindings-13.5.0 nvidia_cuda_nvrtc_cu12-12.9.86",
     "NVRTC loaded cuda_bindings-13.5.0 nvidia_cuda_nvrtc_cu12-12.9.86")])
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


# Many processes


WORKER = f"""
import hashlib, sys
from peakgemm.runtime import compile as compiler
compiler.ANNOUNCE_AFTER = 300  # many on few cores take long
sys.stdin.readline()  # all start together
for factor in range(3):
    c = compiler.compile_source({SCALE!r}, "scale", "sm_90", {{"FACTOR": factor + 2}})
    print(hashlib.sha256(c.code).hexdigest(), c.registers)
"""


def test_processes_on_a_cold_cache(cold: Path, programs: SimpleNamespace, said: list[str]) -> None:
    workers = [subprocess.Popen([sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True) for _ in range(4)]
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    told = [worker.communicate(timeout=300) for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 4, told
    assert [err for _, err in told] == [""] * 4
    assert len({out for out, _ in told}) == 1
    assert len(files(cold)) == 6  # three binaries, three facts, nothing half-written
    assert len({scale(factor).code for factor in (2, 3, 4)}) == 3
    assert (programs.count, said) == (3, [])  # under the name scale.cu: entries of their own
    assert len(files(cold)) == 12


# Many threads


def test_threads_share_a_compilation(cold: Path, programs: SimpleNamespace) -> None:
    """The others ask while the first compiles."""
    programs.meanwhile = lambda: time.sleep(0.5)
    with ThreadPoolExecutor(4) as pool:
        shared = list(pool.map(lambda _: scale(), range(4)))
    assert programs.count == 1
    assert all(one == shared[0] for one in shared)
    assert sum(one.remake is None for one in shared) > 1  # not from the disk


def test_a_failure_is_not_kept(cold: Path, programs: SimpleNamespace) -> None:
    def fail() -> None:
        raise RuntimeError("out of luck")

    programs.meanwhile = fail
    with pytest.raises(CompileFailed, match="out of luck"):
        scale()
    programs.meanwhile = lambda: None
    assert scale().entry == "scale"
    assert programs.count == 2


# Announcements


def test_a_long_compilation_says_so_meanwhile(cold: Path, programs: SimpleNamespace, said: list[str],
                                              impatient: None) -> None:
    heard = []

    def listen() -> None:
        for _ in range(1000):
            if said:
                break
            threading.Event().wait(0.01)
        heard.extend(said)  # while the compilation is still under way

    programs.meanwhile = listen
    scale(3)
    assert heard == [f"peakgemm: compiling scale.cu for sm_90 (first use; cached in {cold}) ..."]
    programs.meanwhile = lambda: threading.Event().wait(0.3)
    scale(4)
    assert len(said) == 1  # once is enough


# Entries of no use


def test_an_entry_that_the_driver_refuses_is_made_again(cold: Path, programs: SimpleNamespace) -> None:
    fresh = scale()
    assert fresh.remake is None  # this process compiled it
    before = files(cold)
    assert scale().remake() == fresh
    assert programs.count == 2
    assert files(cold) == before


# The command line


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run a command line in this process: exit code, what it printed, what it complained of."""
    monkeypatch.setattr("peakgemm.runtime.device.find", lambda: None)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["peakgemm", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code or 0, *capsys.readouterr()
    return call


def test_clear_leaves_what_is_not_ours_and_tuning_entries_unless_told(cold: Path, run) -> None:
    scale()
    (cold / "tuned").mkdir()
    others = [cold / "notes.txt", cold / "tuned" / "notes.txt", cold / "tuned" / "one.json"]
    for file in others:
        file.write_text("{}")
    assert run("cache", "clear")[0] == 0
    assert files(cold) == others
    assert run("cache", "clear", "--tuned")[0] == 0
    assert files(cold) == others[:2]


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is warmed are three kernels that compile in no time."""
    recipes = [Recipe(SCALE, "scale", "sm_90", {"FACTOR": factor}, "scale.cu") for factor in (2, 3, 4)]
    monkeypatch.setattr("peakgemm.selection.choose.warm_set", lambda arch: recipes)


def test_warm(cold: Path, programs: SimpleNamespace, run, three: None) -> None:
    for new in (3, 0):
        assert run("cache", "warm", "--arch", "sm_90") == (0, f"{cold}: 3 kernels for sm_90, {new} of them new\n", "")
    assert programs.count == 3


def test_what_is_warmed_is_all_that_a_first_call_compiles() -> None:
    """Partial sums, and repacked operands; of the set, the kernels of every launch."""
    from peakgemm.kernels.library import recipes
    from peakgemm.selection.choose import choose, warm_set

    problem = Problem.contiguous(4095, 4095, 4095)
    choice = choose(problem, "sm_90", 132)
    wanted = recipes(choice.kernel, choice.config, problem, "sm_90", 132)
    assert [made.entry for made in wanted] == ["ffma_first_chunk", "ffma_wide", "ffma_reduce"]
    assert set(wanted) <= set(warm_set("sm_90"))
    assert "ffma_first_chunk" not in {made.entry for made in warm_set("sm_75")}


def test_warm_without_a_cache_is_refused(cold: Path, run, three: None) -> None:
    cold.write_text("in the way")
    code, _, err = run("cache", "warm", "--arch", "sm_90")
    assert code == 2
    assert "nothing would be kept: " in err
    assert "Set PEAKGEMM_CACHE_DIR" in err
