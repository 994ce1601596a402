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
from peakgemm.cli.console import waiting
from peakgemm.cli.examples import EXAMPLES
from peakgemm.kernels.registry import LADDER, numbers
from peakgemm.tools.simulator.front.arguments import argument
from rung_code import build

# What these find is kept elsewhere: in the cache, in a page.
WITHOUT_JSON = {"cache clear", "cache warm", "explore", "report", "sass apply", "sass optimize", "tune"}
# Of each command: words that end it with 2, and what is said. 0 and 1 are tested where each command's work is.
BAD = {
    "ladder": ("--size none", "'none' is not a number"), "sweep": ("--tile 1,2", "is not a tile"),
    "bench": ("--suite nosuch", "nosuch"), "tune": ("--dry-run", "nothing to tune"),
    "accuracy": ("--of nosuch", "nosuch"), "simulate": ("nosuch", "nosuch"), "inspect show": ("nosuch", "nosuch"),
    "multiply": ("gone.npy gone.npy -o c.npy", "cannot read gone.npy"),
    "inspect map": ("--tile x", "is not ROWSxCOLUMNS"),
    "inspect occupancy": ("--threads 256 --registers 999 --arch sm_90", "999"), "report": ("gone.json", "cannot read"),
    "explore": ("gone.cu --grid 1 --block 32", "is not a file"),
    "sass check": ("gone.cubin", "cannot be read"), "sass optimize": ("nosuch", "nosuch"),
    "sass apply": ("gone.jsonl gone.cubin --output out.cubin", "cannot be read"),
    "verify": ("--json gone/a.json", "cannot write"), "doctor": ("--json gone/a.json", "cannot write"),
    "cache info": ("--json gone/a.json", "cannot write"),
    "cache clear": ("--nosuch", "No such option"), "cache warm": ("--shape x", "is not MxNxK"),
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


def test_the_tables_name_every_command() -> None:
    assert set(COMMANDS) == set(EXAMPLES) - {"inspect"}, "each command has its examples in cli/examples.py"
    assert set(COMMANDS) == set(BAD), "each command has its mistake above"


def test_the_page_names_every_command() -> None:
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
    named = [name for cell in re.findall(r"^\| (`.*?) \|", page, re.M) for name in re.findall(r"`([a-z]+)`", cell)]
    assert sorted(named) == sorted({name.split()[0] for name in COMMANDS})


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_examples(name: str, run: Any) -> None:
    code, said, complained = run(*name.split(), "--help")
    assert (code, complained) == (0, "") and fits(said)
    for line, what in EXAMPLES[name]:
        assert f"    {line}\n        {what}\n" in said


def test_the_ladders_help_names_the_rungs_there_are(run: Any) -> None:
    said = " ".join(run("ladder", "--help")[1].split())
    assert f"Of {numbers()}, such as" in said and "from naive to tensor cores" in said


@pytest.mark.parametrize("line", [line for entries in EXAMPLES.values() for line, _ in entries])
def test_examples_parse(line: str) -> None:
    for number, word in enumerate(parsed(line).get("arg") or []):
        argument(word, number, 1 << 20)


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - WITHOUT_JSON))
def test_what_is_printed_can_be_kept(name: str) -> None:
    assert any("--json" in option.opts for option in COMMANDS[name].params)


@pytest.mark.parametrize("name", BAD)
def test_bad_input_exits_with_2(name: str, here: Path, run: Any) -> None:
    words, says = BAD[name]
    code, said, complained = run(*name.split(), *words.split())
    assert (code, said) == (2, "") and says in complained
    assert "Traceback" not in complained and list(here.iterdir()) == []


@pytest.mark.parametrize("words", ["doctor", "cache info", "inspect map",
                                   "inspect occupancy --threads 256 --registers 64"])
def test_found_is_kept(words: str, here: Path, run: Any) -> None:
    code, said, _ = run(*words.split(), "--json", "a.json")
    assert code == 0 and "written to a.json" in said.lower()
    data = json.loads((here / "a.json").read_text())
    record_schema.validate(data)
    assert data["found"] and data["command"] == f"peakgemm {words} --json a.json"


@pytest.mark.parametrize("words", [
    "multiply a.npy b.npy -o o.npy --json a.npy", "multiply a.npy b.npy -o o.npy --json o.npy",
    "multiply a.npy b.npy -o o.npy --json ./o.npy.journal", "multiply a.npy b.npy -o a.npy --overwrite",
    "simulate k.ptx --grid 1 --block 1 --json k.ptx", "simulate k.ptx --grid 1 --block 1 --arg a.npy --json a.npy",
    "inspect show k.ptx --json k.ptx", "inspect show k.ptx --html k.ptx", "inspect show 14 --json x --html x",
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
    environment = {**os.environ, "_PEAKGEMM_COMPLETE": "complete_bash", "COMP_WORDS": "peakgemm la", "COMP_CWORD": "1"}
    code = "import sys; sys.argv = ['peakgemm']; from peakgemm.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["ladder"]


def test_a_pipe_gets_plain_text() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "COLUMNS")}
    done = subprocess.run([sys.executable, "-m", "peakgemm", "inspect", "map"], env=environment, capture_output=True,
                          text=True, check=True)
    assert "\x1b" not in done.stdout + done.stderr and "register:bank" in done.stdout


LOST = ["inspect map", "--help", "--version", "ladder --help", "inspect map --json a.json", "sass check c.cubin"]
FULL = "peakgemm: cannot write to the standard output (No space left on device); send it elsewhere\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("words", LOST)
@pytest.mark.parametrize("buffered", [True, False])
def test_a_full_disk_is_said_in_a_line(words: str, buffered: bool, here: Path, monkeypatch: pytest.MonkeyPatch,
                                       capsys: pytest.CaptureFixture[str]) -> None:
    """The record of ``--json`` is written all the same."""
    if "cubin" in words:
        (here / "c.cubin").write_bytes(build(LADDER[0], LADDER[0].default, "sm_90").code)
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
@pytest.mark.parametrize(("place", "words", "says"), [
    ("full", "", FULL), ("left", "", ""), ("left", "--json a.json", "")])
def test_a_process_whose_output_is_lost(place: str, words: str, says: str, tmp_path: Path) -> None:
    read, left = os.pipe()
    os.close(read)
    stdout = os.open("/dev/full", os.O_WRONLY) if place == "full" else left
    done = subprocess.run([sys.executable, "-m", "peakgemm", "inspect", "map", *words.split()], stdout=stdout,
                          stderr=subprocess.PIPE, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, says)
    assert not words or json.loads((tmp_path / "a.json").read_text())["found"]


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
    time.sleep(2)
    started.send_signal(signal.SIGINT)
    _, complained = started.communicate(timeout=60)
    assert started.returncode == 130, complained
    assert "Traceback" not in complained and [path.name for path in tmp_path.iterdir()] == ["endless.ptx"]


def test_waiting_says_nothing_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with waiting("working"):
        time.sleep(0.05)
    assert capsys.readouterr() == ("", "")
