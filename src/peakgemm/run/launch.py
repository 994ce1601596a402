"""The command's side: read the options, then become the program. Nothing heavy is imported: that is the start-up."""

from __future__ import annotations

import os
import sys
from time import time_ns
from typing import NoReturn

from ..errors import InvalidValue, MissingComponent

VARIABLE = "PEAKGEMM_RUN"
_BOOTSTRAP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bootstrap")


def main(words: list[str]) -> NoReturn:
    """``peakgemm run WORDS``.

    Raises:
        InvalidValue: an option that there is not, a value that is none, or no program.
        MissingComponent: a system on which a process cannot become another program.
    """
    asked, target = _parsed(list(words))
    if os.name == "nt":
        raise MissingComponent("peakgemm run needs Linux; put the program's work in a `with peakgemm.use():` block")
    folder = os.path.abspath(os.path.join(os.environ.get("TMPDIR") or "/tmp", f"peakgemm-{os.getpid()}-{time_ns()}"))
    try:
        os.mkdir(folder, 0o700)
    except OSError as error:
        raise InvalidValue(f"cannot make {folder} ({error.strerror}); set TMPDIR to a folder that exists") from None
    asked |= {"root": os.getpid(), "folder": folder, "prefix": sys.prefix,
              "source": os.path.dirname(os.path.dirname(os.path.dirname(_BOOTSTRAP))), "command": " ".join(words)}
    before = os.environ.get("PYTHONPATH")
    os.environ.update({VARIABLE: "\x1f".join(f"{name}={value}" for name, value in asked.items()),  # json takes 8 ms
                       "PYTHONPATH": _BOOTSTRAP + (os.pathsep + before if before else "")})
    os.execv(sys.executable, [sys.executable, *target])


def _parsed(words: list[str]) -> tuple[dict[str, object], list[str]]:
    """The options, and what Python is given; behind the program's name all words are the program's."""
    asked: dict[str, object] = {"precision": "ieee", "linalg": "", "check": 0, "certify": 0.0, "json": ""}

    def value(name: str) -> str:
        if not words:
            raise InvalidValue(f"{name} wants a value; see peakgemm run --help")
        return words.pop(0)

    while words and words[0].startswith("-") and words[0] != "-":
        name, is_joined, given = words.pop(0).partition("=")
        if name == "-m":
            return asked, ["-m", value("-m"), *words]
        if name == "--linalg" and not is_joined:
            asked["linalg"] = "yes"
        elif name in ("--precision", "--check", "--certify", "--json"):
            asked[name[2:]] = given if is_joined else value(name)
        else:
            raise InvalidValue(f"{name} is no option of peakgemm run; give the program's own behind its name")
        _check(asked)
    if not words:
        raise InvalidValue("peakgemm run wants a program: peakgemm run program.py, or peakgemm run -m module")
    if words[0] != "-" and not os.path.exists(words[0]):
        raise InvalidValue(f"there is no {words[0]}; name a Python program, or a module with -m")
    if (path := asked["json"]) and os.path.exists(str(path)) and os.path.realpath(str(path)) == os.path.realpath(
            words[0]):
        raise InvalidValue(f"--json {path} is a file which the command reads or writes; name another one")
    return asked, words


def _check(asked: dict[str, object]) -> None:
    """Refuse a value; those that are often given without importing what knows all others."""
    if asked["precision"] not in ("ieee", "emulated"):
        from ..calls.request import check_precision

        if check_precision(str(asked["precision"])) == "reproducible" and asked["linalg"]:
            raise InvalidValue("--linalg keeps no promise of --precision reproducible; leave out one of the two")
    if not str(asked["check"]).isdecimal():
        raise InvalidValue(f"--check {asked['check']} is no number of products; pass 0 or more")
    asked["check"] = int(str(asked["check"]))
    try:
        share = float(str(asked["certify"]))
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise InvalidValue(f"--certify {asked['certify']} is no share of the products; pass a number from 0 to 1: 0.01 "
                           "for one in a hundred")
    if asked["json"]:
        path = os.path.abspath(str(asked["json"]))  # the program may go elsewhere
        if not os.access(os.path.dirname(path), os.W_OK) or os.path.isdir(path):
            raise InvalidValue(f"cannot write {asked['json']}; name a file in a folder that exists")
        asked["json"] = path
