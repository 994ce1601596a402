"""Every command: help with examples that parse, `--json`, exit codes, plain output in a pipe, no half file."""
# ruff: noqa: F401, F811  (fixtures of tests/support)

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import record_schema
from command_lines import APP, parsed
from commands import fits, here, run
from peakgemm import cli
from peakgemm.cli.examples import EXAMPLES
from peakgemm.tools.simulator.front.arguments import argument

# What these find is kept elsewhere: in the cache, in a page.
WITHOUT_JSON = {"cache clear", "cache warm", "exercise", "explore", "report", "sass apply", "sass optimize", "tune"}
# A line of the command line, and words of the one message with which it ends: value, limit or remedy. Every command
# has a line.
MISTAKES = {
    "exercise 14": "rung 14 has no exercise; 00 to 10", "exercise 3 --check": "write it with: peakgemm exercise 03",
    "ladder --rungs 99": "unknown rung 99|14 large_tile", "ladder --rungs 07-03": "write 03-07",
    "ladder --arch sm_42": "'sm_42'|sm_75, sm_80", "ladder --arch sm_75 --rungs 13": "needs sm_80",
    "ladder --size none": "'none'|a number such as 4096", "ladder --size 1024,9999999999": "'9999999999'|2147482624",
    "ladder --shape 128x128": "MxNxK", "ladder --size 128 --shape 1x1x1": "exclude each other",
    "ladder --rungs 0 --json gone/a.json": "cannot write gone/a.json|folder that exists",
    "sweep --tile 1,2": "is not a tile", "sweep --tile 100,8,128,8,8": "BM = 100 must be a multiple of 8 (TM)",
    "sweep --tile 256,16,256,16,16,db": "320 a thread|255", "sweep --size 128,256": "one shape, not 2",
    "bench --suite nosuch": "'nosuch'|square, odd, k1024", "bench --peers nosuch": "'nosuch'|cublas, torch, cupy",
    "bench --precision nosuch": "'nosuch'|'ieee', 'emulated'", "bench --prepared": "add --precision",
    "bench --precision tf32x3 --arch sm_75": "sm_75|use 'emulated'", "bench --shape 5x5": "'5x5'|NN, NT, TN, TT",
    "bench --svg gone/a.svg": "cannot write gone/a.svg", "bench --svg a.svg": "--svg|leave it out",
    "tune --dry-run": "nothing to tune|--shape MxNxK", "tune --suite nosuch --dry-run": "'nosuch'|models",
    "tune --shape 5x5x5 --arch sm_90": "--arch|--dry-run",
    "accuracy --of nosuch": "'nosuch'", "accuracy --against mkl": "unknown contender 'mkl'",
    "accuracy --of cublas --host": "nothing to judge: cublas", "accuracy --sizes 16,x": "'x' is not a size",
    "accuracy --ks 2000000": "K = 2000000 must lie in 2..1048576",
    "accuracy --tests repeat --plot a.svg": "has none; add random or long-k",
    "simulate nosuch": "nosuch", "limits nosuch": "nosuch", "limits 07 --gpu a100": "no latencies|h100",
    "limits gone.cu --grid 1 --block 32": "not a file",
    "inspect show nosuch": "nosuch", "inspect map --tile x": "is not ROWSxCOLUMNS",
    "inspect occupancy --threads 256 --registers 999 --arch sm_90": "999",
    "inspect occupancy --threads 2000 --registers 32 --arch sm_90": "2000 threads|1024",
    "multiply gone.npy gone.npy -o c.npy": "cannot read gone.npy", "explore gone.cu --grid 1 --block 32": "not a file",
    "run": "a program: peakgemm run program.py", "run gone.py": "there is no gone.py|-m",
    "run --check x a.py": "--check x", "run --json gone/a.json -m json": "cannot write gone/a.json",
    "run --precision fp8 -m json": "'fp8'|'ieee', 'emulated'", "run --fast a.py": "--fast is no option",
    "run --certify 2 -m json": "--certify 2 is no share",
    "run --linalg --precision reproducible -m json": "--linalg keeps no promise",
    "report": "has no results/", "report gone.json": "cannot read gone.json",
    "sass check gone.cubin": "cannot be read", "sass optimize nosuch": "nosuch",
    "sass apply gone.jsonl gone.cubin --output out.cubin": "cannot be read",
    "verify --json gone/a.json": "cannot write", "doctor --json gone/a.json": "cannot write",
    "cache info --json gone/a.json": "cannot write", "cache clear --nosuch": "No such option",
    "cache warm --shape x": "is not MxNxK",
}


def commands_of(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_of(command, f"{before}{name} ")
        else:
            yield before + name, command


COMMANDS = {name: command for name, command in commands_of(APP) if not command.hidden}
ENDLESS = """.version 8.0
.target sm_90
.address_size 64
.visible .entry endless(.param .u64 p)
{
    .reg .b32 %r<3>;
    mov.u32 %r1, 0;
AGAIN:
    add.u32 %r1, %r1, 1;
    bra AGAIN;
}
"""


def test_the_tables_and_the_page_name_every_command() -> None:
    assert set(COMMANDS) == set(EXAMPLES) - {"inspect"}, "each command has its examples in cli/examples.py"
    assert {name for name in COMMANDS if not any(line.startswith(name) for line in MISTAKES)} == set()
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
    named = [name for cell in re.findall(r"^\| (`.*?) \|", page, re.M) for name in re.findall(r"`([a-z]+)`", cell)]
    assert sorted(named) == sorted({name.split()[0] for name in COMMANDS})


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_examples_that_parse(name: str, run: Any) -> None:
    code, said, complained = run(*name.split(), "--help")
    assert (code, complained) == (0, "") and fits(said)
    for line, what in EXAMPLES[name]:
        assert f"    {line}\n        {what}\n" in said
        for number, word in enumerate(parsed(line).get("arg") or []):
            argument(word, number, 1 << 20)
    assert name in WITHOUT_JSON or any("--json" in option.opts for option in COMMANDS[name].params)


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_message_and_exit_code_2(line: str, here: Path, run: Any) -> None:
    code, said, complained = run(*line.split())
    assert (code, said) == (2, "") and "Traceback" not in complained and list(here.iterdir()) == []
    assert all(words in complained for words in MISTAKES[line].split("|")), complained
    assert complained.count("peakgemm: ") == complained.count("\n") == 1 or "Usage" in complained


@pytest.mark.parametrize("words", ["doctor", "cache info", "inspect occupancy --threads 256 --registers 64"])
def test_found_is_kept(words: str, here: Path, run: Any) -> None:
    code, said, _ = run(*words.split(), "--json", "a.json")
    assert code == 0 and "written to a.json" in said.lower()
    data = json.loads((here / "a.json").read_text())
    record_schema.validate(data)
    assert data["found"] and data["command"] == f"peakgemm {words} --json a.json"


@pytest.mark.parametrize("words", [
    "multiply a.npy b.npy -o o.npy --json a.npy", "multiply a.npy b.npy -o o.npy --json o.npy",
    "multiply a.npy b.npy -o o.npy --json ./o.npy.journal", "multiply a.npy b.npy -o a.npy --overwrite",
    "simulate k.ptx --grid 1 --block 1 --arg a.npy --json a.npy", "inspect show k.ptx --html k.ptx",
    "bench --json x --svg x", "lab.scale --links k.ptx --json k.ptx", "accuracy --json x --plot x",
    "report k.ptx -o k.ptx", "lab.choice fit --rows k.ptx -o k.ptx", "sass apply k.ptx c.cubin --output k.ptx",
    "sass optimize 14 --recipe k.ptx -o k.ptx",
])
def test_an_input_is_never_replaced(words: str, here: Path, run: Any) -> None:
    files = {"a.npy": np.ones((3, 3), np.float32), "b.npy": np.ones((3, 3), np.float32)}
    for name, x in files.items():
        np.save(here / name, x)
    (here / "k.ptx").write_text(ENDLESS)
    before = {path.name: path.read_bytes() for path in here.iterdir()}
    code, _, complained = run(*words.split())
    assert code == 2 and ("which the command reads or writes" in complained or "an input, which is" in complained)
    assert {path.name: path.read_bytes() for path in here.iterdir()} == before


def test_completion() -> None:
    asked = {"_PEAKGEMM_COMPLETE": "complete_bash", "COMP_WORDS": "peakgemm la", "COMP_CWORD": "1"}
    code = "import sys; sys.argv = ['peakgemm']; from peakgemm.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, text=True,
                          check=False)
    assert done.stdout.split() == ["ladder"]


FULL = "peakgemm: cannot write to the standard output (No space left on device); send it elsewhere\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("words", ["inspect map", "--help", "inspect map --json a.json"])
@pytest.mark.parametrize("buffered", [True, False])
def test_a_full_disk_is_said_in_a_line(words: str, buffered: bool, here: Path, monkeypatch: pytest.MonkeyPatch,
                                       capsys: pytest.CaptureFixture[str]) -> None:
    """The record of ``--json`` is written all the same."""
    with io.FileIO("/dev/full", "w") as raw:  # a device that is written to, not replaced
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(raw) if buffered else raw,
                                                            write_through=not buffered))
        monkeypatch.setattr(sys, "argv", ["peakgemm", *words.split()])
        with pytest.raises(SystemExit) as end:
            cli.main()
    assert (end.value.code, capsys.readouterr().err) == (1, FULL)
    if "json" in words:
        assert json.loads((here / "a.json").read_text())["found"]


@pytest.mark.skipif(os.name != "posix", reason="needs pipes")
def test_a_reader_that_has_left_is_told_nothing(tmp_path: Path) -> None:
    read, left = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-m", "peakgemm", "inspect", "map", "--json", "a.json"], stdout=left,
                          stderr=subprocess.PIPE, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "") and json.loads((tmp_path / "a.json").read_text())["found"]


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_an_interrupted_command_leaves_no_file(tmp_path: Path) -> None:
    kernel = tmp_path / "endless.ptx"  # not CUDA: while NVRTC compiles, it is NVRTC that ends the process, with 4
    kernel.write_text(ENDLESS)
    words = ["simulate", str(kernel), "--grid", "1", "--block", "32", "--arg", "s32:32:zeros", "--json",
             str(tmp_path / "a.json")]
    code = "import sys; from peakgemm import cli; print('ready', flush=True); cli.main()"
    started = subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True)
    assert started.stdout is not None and started.stdout.readline() == "ready\n"
    time.sleep(1)
    started.send_signal(signal.SIGINT)
    _, complained = started.communicate(timeout=60)
    assert started.returncode == 130, complained
    assert "Traceback" not in complained and [path.name for path in tmp_path.iterdir()] == ["endless.ptx"]


