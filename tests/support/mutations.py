"""Broken PTX: seeded changes to the text of kernels, and what the command line makes of them."""

import random
import re
from dataclasses import dataclass
from pathlib import Path

from peakgemm.kernels.registry import rung
from peakgemm.problem import Problem
from peakgemm.runtime.compile import compile_source
from peakgemm.runtime.source import assemble
from peakgemm.tools.simulator.front import includes
from rung_code import arguments, build, launch
from simulator_cases import FIXTURES, command

TOKEN = re.compile(r"\s+|[%$_.A-Za-z][\w$.:]*|\d[\w.]*|.", re.S)
NUMBERS = ("0", "1", "-1", "2", "3", "7", "31", "32", "33", "64", "255", "256", "1024", "65536", "2147483647",
           "4294967295", "4294967296", "9223372036854775807", "18446744073709551616", "99999999999999999999", "0x7f",
           "0f7FC00000", "1.5", "-0.0", "1e400", "017", "0b11", "08")
WORDS = (".b8", ".u16", ".b32", ".s64", ".f32", ".f64", ".pred", ".f16x2", ".b128", ".v4", ".shared", ".global",
         ".local", ".param", ".reg", "{", "}", "(", ")", "[", "]", ";", ",", "@%p1", "ret;", "exit;", "bar.sync 0;",
         "bra", "call", "%r1", "%rd1", "%f1", "%p1", "%tid.x", "_", "trap;", "-", "|", "!")


@dataclass
class Seed:
    """A kernel that runs, and how."""

    name: str
    text: str
    options: list[str]


def seeds() -> list[Seed]:
    """Texts of several compilers, and a rung that copies asynchronously."""
    found = []
    foreign = FIXTURES / "foreign"
    for name, options in (
        ("clang", "--grid 2 --block 64 --arg f32:100:ones --arg f32:100 --arg 3.0 --arg 100"),
        ("nvcc_debug", "--grid 2 --block 32 --arg f32:50:ones --arg f32:50 --arg 50"),
        ("tinygrad", "--grid 4x2 --block 16 --arg f32:32x16 --arg f32:32x48:ones --arg f32:48x16:ones"),
        ("triton", "--grid 2 --block 128 --arg f32:2x100:ones --arg f32:2x100 --arg 100 --arg 0 --arg 0 --shared 16"),
        ("nvrtc", "--kernel rows<float,8> --grid 2 --block 32 --arg f32:2x37 --arg f32:2 --arg 37"),
    ):
        text = (foreign / f"{name}.ptx").read_text().split("\n\t.section")[0]  # what a debugger reads is passed over
        found.append(Seed(name, text + "\n", options.split()))
    for file, entry, options in (
        ("foreign", "reduce", "--grid 2 --block 96 --arg f32:100:ones --arg f32:1 --arg 100"),
        ("foreign", "softmax", "--grid 2 --block 32 --arg f32:2x50:ones --arg f32:2x50 --arg 50 --shared 200"),
        ("foreign", "histogram", "--grid 2 --block 64 --arg u8:200:arange --arg 200 --arg u32:256"),
        ("foreign", "mma_gemm", "--grid 1x1 --block 32 --arg f16:16x32:ones --arg f16:8x32:ones --arg f32:16x8 "
                                "--arg 16 --arg 8 --arg 32"),
        ("calls", "prints", "--grid 1 --block 32 --arg f32:32:ones --arg 5"),
        ("calls", "structs", "--grid 1 --block 32 --arg f32:32:ones --arg f32:32 --arg 30"),
    ):
        text = compile_source(assemble(FIXTURES / f"{file}.cu"), entry, "sm_90", kind="ptx",
                              include=includes.folders([])).text
        found.append(Seed(entry, text, ["--kernel", entry, *options.split()]))
    for number in (3, 13, 14):
        kernel, problem = rung(number), Problem.contiguous(20, 24, 16)
        config = kernel.config_for("sm_90")
        made = launch(kernel, config, problem)
        args = ["f32:20x16:ones", "f32:16x24:ones", "f32:20x24", *map(str, arguments(made))]
        found.append(Seed(f"rung{number}", build(kernel, config, "sm_90", "ptx").text,
                          ["--grid", str(made.blocks), "--block", str(made.threads), "--shared", str(made.shared_bytes),
                           *(word for arg in args for word in ("--arg", arg))]))
    return found


def mutated(text: str, draw: random.Random) -> str:
    """The text with one to three changes."""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        text = draw.choice((_byte, _line, _line, _token, _token, _token, _number, _number))(text, draw)
    return text


def _byte(text: str, draw: random.Random) -> str:
    at = draw.randrange(max(len(text), 1))
    put = draw.choice(("", chr(draw.randrange(32, 127)), text[at:at + 1] * 2, "\0", "é", "\n"))
    return text[:at] + put + text[at + draw.choice((0, 1, 1, draw.randrange(40))):]


def _line(text: str, draw: random.Random) -> str:
    lines = text.split("\n")
    a, b = draw.randrange(len(lines)), draw.randrange(len(lines))
    how = draw.randrange(5)
    if how == 0:
        del lines[a]
    elif how == 1:
        lines.insert(b, lines[a])
    elif how == 2:
        lines[a], lines[b] = lines[b], lines[a]
    elif how == 3:
        lines[a] = lines[b]
    else:
        return "\n".join(lines[:a + 1])
    return "\n".join(lines)


def _token(text: str, draw: random.Random) -> str:
    tokens = TOKEN.findall(text)
    a, b = draw.randrange(len(tokens)), draw.randrange(len(tokens))
    how = draw.randrange(6)
    if how == 0:
        del tokens[a]
    elif how == 1:
        tokens.insert(b, tokens[a])
    elif how == 2:
        tokens[a], tokens[b] = tokens[b], tokens[a]
    elif how == 3:
        same = [one for one in tokens if one[:1] == tokens[a][:1]]
        tokens[a] = draw.choice(same)
    elif how == 4:
        tokens[a] = f" {draw.choice(WORDS)} "
    else:  # another modifier
        names = [place for place, one in enumerate(tokens) if one.count(".") > 1]
        if names:
            place = draw.choice(names)
            parts = tokens[place].split(".")
            parts[draw.randrange(1, len(parts))] = draw.choice(tokens[draw.choice(names)].split(".")[1:])
            tokens[place] = ".".join(parts)
    return "".join(tokens)


def _number(text: str, draw: random.Random) -> str:
    places = list(re.finditer(r"(?<![\w$.])-?\d[\w.]*", text))
    if not places:
        return text
    one = draw.choice(places)
    return text[:one.start()] + draw.choice(NUMBERS) + text[one.end():]


def outcome(text: str, options: list[str], folder: Path) -> tuple[int, str]:
    """The exit code of ``peakgemm simulate`` and what it said; any other exception passes."""
    path = folder / "mutated.ptx"
    path.write_text(text, encoding="utf-8")
    code, *said = command(path, *options, "--max-steps", "6000", "--max-memory", "200000000")
    return code, "".join(said)
