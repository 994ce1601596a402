"""`peakgemm run`: the program is as without; what it imports is rerouted, in its children too; the table tells."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import record_schema

SOURCE = Path(__file__).parents[2] / "src"
BOOTSTRAP = SOURCE / "peakgemm" / "run" / "bootstrap"
pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs execv")

#: JAX's products on the CPU are rerouted: what stands here is a sitecustomize that the bootstrap finds behind itself.
ON_THE_CPU = """
import sys
print("mine", file=sys.stderr)
import peakgemm.rerouting as r
def _jax(precision, linalg, recorder, certify):
    from peakgemm.integrations import jax_reroute
    from peakgemm.jax import dot_general
    return jax_reroute.make_use(precision, dot_general, platform="cpu", recorder=recorder)
r._MAKE["jax"] = _jax
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}{os.pathsep}{SOURCE}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    (tmp_path / "site").mkdir()
    return tmp_path


def run(*words: str, given: str = "", rerouted: bool = True) -> subprocess.CompletedProcess[str]:
    """A program's run, by peakgemm or without."""
    command = [sys.executable, *(("-m", "peakgemm", "run") if rerouted else ()), *words]
    return subprocess.run(command, capture_output=True, text=True, input=given, check=False, timeout=120)


def table_of(said: str) -> list[str]:
    """The lines of the table."""
    return ("peakgemm run, precision" + said.partition("peakgemm run, precision")[2]).splitlines()


PROGRAMS = {
    "arguments": "import sys; print(sys.argv, __name__, __file__, __spec__, sys.stdin.read()); sys.exit(3)",
    "path": "import sys, os; print(sys.path, sys.orig_argv[1:], os.getcwd(), 'peakgemm' in vars())",
    "traceback": "def f():\n    raise ValueError('mine')\nf()",
    "words": "import sys; sys.exit('a sentence')",
    "replaced": "import sys; sys.argv[:] = ['other']; print(sys.argv)",
    "at exit": "import atexit; atexit.register(print, 'last')",
    "at once": "import os; os._exit(5)",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "ended": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "interrupted": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "handled": "import os, signal\nsignal.signal(signal.SIGTERM, lambda *_: exit(9))\n"
               "os.kill(os.getpid(), signal.SIGTERM)",
    "forked": "import os, sys\nif os.fork() == 0:\n    sys.exit(4)\nprint(os.waitstatus_to_exitcode(os.wait()[1]))",
    "closed": "import os; os.close(2)",
    "another file": "import os; os.close(2); file = open('mine', 'w'); print(file.fileno()); os.write(2, b'mine')",
    "broken": "def f(:",
    "site": "import sitecustomize; print(sitecustomize.__file__)",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_as_without(name: str, here: Path) -> None:
    (here / "program.py").write_text(PROGRAMS[name])
    (here / "site" / "sitecustomize.py").write_text("VALUE = 1\n")
    plain, ours = (run("program.py", "-x", "--json", "y", given="words", rerouted=x) for x in (False, True))
    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout)
    said = ours.stderr.partition("peakgemm run, precision")[0]
    assert said == plain.stderr
    ends_in_a_table = name not in ("at once", "killed", "ended", "closed", "another file")
    assert not (here / "mine").exists() or (here / "mine").read_text() == "mine"
    assert ("peakgemm run, precision ieee: peakgemm ran 0 calls" in ours.stderr) is ends_in_a_table
    left = {path.name for path in here.iterdir() if path.name.startswith("peakgemm-")}
    assert not left or not ends_in_a_table or name == "forked"


@pytest.mark.parametrize("own", ["", "raise RuntimeError('mine')"])
def test_names_with_lines_and_a_sitecustomize_that_fails(own: str, here: Path) -> None:
    (here / "program.py").write_text("import sys; sys.stderr = None; sys.executable = None")
    (here / "site" / "sitecustomize.py").write_text(own)
    done = run("--json", "two\nlines.json", "program.py")
    assert done.returncode == 0 and "peakgemm ran 0 calls" in done.stderr and ("mine" in done.stderr) is bool(own)
    assert (here / "two\nlines.json").is_file() and not [x for x in here.iterdir() if x.name.startswith("peakgemm-")]


def test_modules_and_standard_input(here: Path) -> None:
    (here / "package").mkdir()
    (here / "package" / "__main__.py").write_text("import sys; print(sys.argv[1:], __package__, __spec__.name)")
    for words in (["-m", "package", "--json", "a"], ["-m", "json.tool", "--help"], ["-m", "no_such_module"]):
        plain, ours = run(*words, rerouted=False), run(*words)
        assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout)
    assert run("-", given="print(2 + 2)").stdout == "4\n"


def test_nothing_is_imported_for_it(here: Path) -> None:
    (here / "program.py").write_text("import sys; print(*sys.modules)")
    loaded = set(run("program.py").stdout.split())
    assert "peakgemm.run.hook" in loaded
    assert not {"numpy", "json", "dataclasses", "torch", "jax", "typer", "subprocess"} & loaded


MULTIPLIES = """
import multiprocessing, sys
import jax, jax.numpy as jnp
def work(n):
    a = jnp.ones((n, n))
    for _ in range(3):
        a = jax.block_until_ready(a @ a / n)
    return float(a[0, 0])
if __name__ == "__main__":
    assert work(8) == 1
    half = jnp.ones((4, 4), jnp.bfloat16)
    half @ half
    sys.argv = ["other"]
    process = multiprocessing.get_context("spawn").Process(target=work, args=(5,))
    process.start()
    process.join()
"""


def test_jax_in_a_program_and_its_children(here: Path) -> None:
    pytest.importorskip("jax", reason="needs jax")
    (here / "site" / "sitecustomize.py").write_text(ON_THE_CPU)
    (here / "program.py").write_text(MULTIPLIES)
    done = run("--json", "run.json", "--precision=emulated", "program.py")
    assert done.returncode == 0, done.stderr
    head, _, *rows = table_of(done.stderr)
    assert "precision emulated: peakgemm ran 6 calls, 100.0 % of the FP32 operations; 1 stayed" in head
    assert "2 processes" in head and done.stderr.count("mine") > 3  # the command's and multiprocessing's too
    assert sorted(row.split()[2:4] for row in rows if row.endswith("peakgemm")) == [
        ["5x5x5", "3"], ["8x8x8", "3"]]
    assert any(row.endswith("jax: bfloat16") for row in rows)
    record = json.loads((here / "run.json").read_text())
    record_schema.validate(record)
    assert record["command"] == "peakgemm run --json run.json --precision=emulated program.py"
    program, *products = record["found"]
    assert (program["processes"], program["checks"]["done"]) == (2, 0)
    assert sum(row["calls"] for row in products if not row["reason"]) == 6
    assert sorted(path.name for path in here.iterdir() if "peakgemm" in path.name) == []


def test_a_library_that_cannot_be_rerouted(here: Path) -> None:
    """It is used as it is, and the table says so in a sentence."""
    (here / "torch.py").write_text("__version__ = '1.0'")
    (here / "jax.py").write_text("raise ImportError('no jax here')")
    (here / "program.py").write_text("import torch\ntry: import jax\nexcept ImportError as e: print(e)\n"
                                     "print(torch.__version__, torch.__loader__.exec_module.__name__)")
    done = run("program.py")
    assert (done.returncode, done.stdout) == (0, "no jax here\n1.0 exec_module\n")
    assert table_of(done.stderr)[1] == "no product on a GPU was seen; imported: torch"
    assert table_of(done.stderr)[2].startswith("torch was not rerouted: ") and "jax was" not in done.stderr


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="needs a virtual environment")
def test_another_interpreter_runs_as_without(here: Path) -> None:
    other = os.path.realpath(sys.executable)
    (here / "program.py").write_text(
        f"import os, subprocess\nprint(subprocess.run([{other!r}, '-c', 'print(1)'], capture_output=True, text=True, "
        f"env={{**os.environ, 'PYTHONPATH': {str(BOOTSTRAP)!r}}}))")
    done = run("program.py")
    assert "returncode=0, stdout='1\\n', stderr=''" in done.stdout
    assert f"{other} was not rerouted: No module named 'peakgemm'" in done.stderr


def test_a_child_that_is_killed_is_counted_to_its_last_second(here: Path) -> None:
    (here / "torch.py").write_text("")
    (here / "program.py").write_text("""
import os, signal, sys, time
from peakgemm.run import hook
recorder = next(x for x in sys.meta_path if type(x).__name__ == "Arrivals")._arrived.__self__.recorder
recorder.add("torch", "mm", (2, 3, 4), 48.0)
if os.fork() == 0:
    recorder.add("torch", "mm", (2, 3, 5), 60.0)
    os.kill(os.getpid(), signal.SIGKILL)
os.wait()
from multiprocessing import get_context
process = get_context("fork").Process(target=recorder.add, args=("torch", "bmm", (2, 3, 4, 5), 240.0))
process.start()
process.join()
recorder.note("a sentence")
""")
    rows = table_of(run("program.py").stderr)
    assert [row.split()[2:4] for row in rows[2:-1]] == [["2x3x4x5", "1"], ["2x3x5", "1"], ["2x3x4", "1"]]
    assert rows[-1] == "a sentence" and "3 processes" in rows[0]


def test_signals_reach_the_program(here: Path) -> None:
    (here / "program.py").write_text("import time; print('ready', flush=True); time.sleep(60)")
    process = subprocess.Popen([sys.executable, "-m", "peakgemm", "run", "program.py"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT and "KeyboardInterrupt" in said and "peakgemm ran 0 calls" in said


def test_mistakes_cost_nothing_to_say(here: Path) -> None:
    """By the quick way, which imports no other command."""
    done = run("--precision", "fp8", "program.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("peakgemm: precision = 'fp8' is unknown")
    assert "typer" not in subprocess.run([sys.executable, "-X", "importtime", "-m", "peakgemm", "run", "gone.py"],
                                         capture_output=True, text=True, check=False).stderr


def test_ever_new_shapes_are_one_row_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from peakgemm.integrations import recorder

    monkeypatch.setattr(recorder, "_MOST", 3)
    counts = recorder.Recorder()
    for n in (1, 2, 3, 4, 5, 1):
        counts.add("torch", "mm", (n, n, n), 2.0 * n**3)
    assert [row[0] for row in counts.rows.values()] == [2, 1, 1, 2]
    assert counts.rows["torch", "mm", "other shapes", ""] == [2, 378.0, 0.0, 0]
    other = recorder.Recorder(check=3)
    other.merge(counts.to_json())
    assert other.rows == counts.rows and other.processes == 2 and "other shapes" in str(other)


def test_the_devices_clock_is_asked_by_doubling() -> None:
    """Of a row's calls the second, third, fifth and ninth; when the device has come to their ends."""
    from peakgemm.integrations import recorder, use

    over, begun = set[int](), list[int]()

    class Clocked(use.Rerouted):
        library = "torch"

        def span(self, like: Any) -> Any:
            begun.append(number := len(begun))
            return lambda: (lambda: number in over, lambda: 2.0 + number)

    ran, counts = Clocked(), recorder.Recorder()
    ran.recorder = counts
    for call in range(1, 10):
        assert ran.clocked("mm", (4, 4, 4), "", None, lambda call=call: call) == call
        ran.count("mm", (4, 4, 4), 128.0, "")
        assert len(begun) == (call > 1) + (call > 2) + (call > 4) + (call > 8)
    assert ran.clocked("bmm", (4, 4, 4), "", None, lambda: None) is None and len(begun) == 4
    assert counts.rows["torch", "mm", (4, 4, 4), ""][2:] == [0.0, 0]
    over |= {0, 1, 3}
    ran.count("mm", (1, 1, 1), 2.0, "")  # which asks the device nothing: a graph may be captured
    assert counts.rows["torch", "mm", (4, 4, 4), ""][2:] == [0.0, 0]
    assert "4x4x4      9    0.0  30.00  peakgemm" in str(counts)
    over.add(2)
    assert "31.50" in str(counts)

    def fails() -> bool:
        raise RuntimeError("the device is gone")

    counts.clock(("torch", "mm", (4, 4, 4), ""), fails, lambda: 1.0)
    assert "31.50" in str(counts) and not counts._spans


def test_programs_with_and_without_are_compared(here: Path) -> None:
    from docs.generate.markdown import run_table
    from lab import run_programs

    path = here / "mine.py"
    path.write_text("""
import sys
exact = "--double" in sys.argv
value = 4.0 if exact else 5.0
print(f'{{"ms": 2.0, "steps": 2, "numbers": [[3.0, {value}], [1e-20], 7]}}')
""")
    runs = run_programs.timed_runs({"mine": path}, ["ieee"], 2, ahead=2)
    untimed = run_programs.untimed_runs({"mine": path}, runs, check=3, beside=2)
    plain, ours = run_programs.rows_of("mine", runs["mine"], untimed["mine"])
    assert (plain["how"], ours["how"], ours["speedup"], ours["from_plain"]) == ("plain", "ieee", 1.0, 0.0)
    assert plain["from_fp64"] == pytest.approx((1 / 25 / 2)**0.5) and ours["of_plain"] == 1  # 1e-20 is rounding
    assert (ours["calls"], ours["checks"]["done"], ours["all_ms"]) == (0, 0, [2.0, 2.0])
    path.write_text("import no_such_package")
    runs = run_programs.timed_runs({"mine": path}, ["ieee"], 1)
    assert run_programs.untimed_runs({"mine": path}, runs, check=3, beside=2) == {"mine": {}}
    row, _ = run_programs.rows_of("mine", runs["mine"], {})
    spent = run_programs.timed_runs({"mine": path}, [], 1, seconds=-1)
    assert spent["mine"]["plain"] == [{"error": "left out, -1 s are spent"}]
    assert row["error"] == "ModuleNotFoundError: No module named 'no_such_package'"
    ours |= {"amdahl": 2.0, "of_amdahl": 0.5}
    table = run_table({"found": [plain, ours, row]}).splitlines()
    assert table[3] == "| mine | ieee | 2.00 | 1.00 | 50 % | 0.0 % | 1.00 | 0 |"
    assert table[-1].startswith("Left out: mine: ModuleNotFoundError")


def test_what_amdahls_law_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="needs torch")
    from lab import rates, run_programs

    times = {"mm": (4.0, 1.0), "linalg_cholesky_ex": (6.0, 2.0)}
    monkeypatch.setattr(rates, "TorchPeer", lambda: type("Peer", (), {"leave": lambda self: None})())
    monkeypatch.setattr(rates.Rates, "_measured", lambda self, x, precision: times.get(x["operation"]))
    rows = [("mm", [8, 8, 8], 10, 990.0), ("bmm", [9, 8, 8], 10, 6.0), ("mm", [1, 1, 2], 1, 4.0),
            ("linalg_cholesky_ex", [8, 8], 5, 0.0)]
    counted = [{"name": "products", "library": "torch", "operation": operation, "shape": shape, "calls": calls,
                "flops": flops, "reason": ""} for operation, shape, calls, flops in rows]
    runs = {"mine": {"plain": [{"ms": 10.0}], "ieee": [{"ms": 8.0, "steps": 10, "counted": counted}]}}
    found = [{"name": "mine", "how": "plain", "ms": 10.0}, {"name": "mine", "how": "ieee", "speedup": 1.25}]
    run_programs.add_rates(found, runs)
    _, row = found
    # (10 * 4 + 5 * 6, 10 * 1 + 5 * 2) ms of products of 990 in 1000 operations, in ten steps
    assert row["product_ms"] == pytest.approx([7.0 / 0.99, 2.0 / 0.99])
    assert row["not_timed"] == ["bmm [9, 8, 8]"]
    assert row["amdahl"] == pytest.approx(10 / (10 - 5 / 0.99))
    assert row["of_amdahl"] == pytest.approx(1.25 / row["amdahl"])


def test_use_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import peakgemm as pg
    from peakgemm import rerouting
    from peakgemm.errors import InvalidValue

    seen: list[Any] = []

    class Block:
        def __init__(self, *what: Any) -> None:
            self.what = what

        def __enter__(self) -> None:
            seen.append(("in", *self.what[:2]))

        def __exit__(self, *exc: object) -> None:
            seen.append(("out", *self.what[:2]))

    monkeypatch.setattr(rerouting, "_MAKE", {"cupy": Block, "torch": Block, "jax": Block})
    monkeypatch.setattr(rerouting, "LIBRARIES", ("cupy",))
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "cupy.py").write_text("")
    before = list(sys.meta_path)
    with pg.use() as ran:
        assert seen == []
        import cupy  # noqa: F401

        assert seen == [("in", "ieee", False)]
        with pg.use("emulated", linalg=True):
            assert seen[1:] == [("in", "emulated", True)]
        assert seen[2:] == [("out", "emulated", True)]
        with pytest.raises(InvalidValue, match="in force already"):
            ran.__enter__()
    assert seen[3:] == [("out", "ieee", False)] and sys.meta_path == before
    del sys.modules["cupy"]
    with pg.use():
        spec = importlib.util.find_spec("cupy")
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert len(seen) == 4
    assert str(ran).startswith("peakgemm ran 0 calls")
    for wrong in ({"precision": "fp8"}, {"check": -1}, {"precision": "reproducible", "linalg": True}):
        with pytest.raises(InvalidValue):
            pg.use(**wrong)
