"""Source assembly: a kernel file joined with the ``.cuh`` files that it names.

Sources need no system header and no include path: ``#include "include/copy/x.cuh"`` is replaced
by the file's text, once, between ``#line`` directives, so that every line of the PTX still
names the file it came from, and the joined text alone is the cache key, but for comments and white space
(`essence`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

from ..errors import MissingComponent

SUFFIXES = (".cu", ".cuh")  # of CUDA C++
KERNELS = Path(__file__).resolve().parent.parent / "kernels"
# Comments, and what may hold the like of one: raw strings, strings, the quotes of 1'000, characters. Each begins with a
# sign of its own: that is what makes the search quick.
COMMENTS_AND_LITERALS = re.compile(
    r"""R"([^\s()\\]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|'(?<=[0-9A-Fa-f]')(?<!u8')|'(?:\\.|[^'\\\n])*'"""
    r"""|//(?:\\\n|[^\n])*|/\*.*?\*/""", re.DOTALL)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"]+)"|<([^>]+)>)[ \t]*(?://.*|/\*.*\*/[ \t]*)?$')


def assemble(path: Path, folders: Sequence[Path] = (), instead: Callable[[str], str | None] = lambda name: None) -> str:
    """The text of ``path`` with its quoted includes joined in, and those that lie in ``folders``.

    Quoted includes are looked for beside the including file, then in ``folders``, then in the package's kernel folder.
    ``instead`` says what stands for the include of a header that is in none of them; None: the include.

    Raises:
        MissingComponent: ``path`` cannot be read.
    """
    return _join(path.resolve(), set(), folders, instead)


def _join(path: Path, seen: set[Path], folders: Sequence[Path], instead: Callable[[str], str | None]) -> str:
    seen.add(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise MissingComponent(f"kernel source {path} cannot be read ({error.strerror}); reinstall peakgemm") from None
    shown = _display(path)
    out = [f'#line 1 "{shown}"']
    for number, line in enumerate(lines, 1):
        match = _INCLUDE.match(line)
        if match is None:
            out.append(line)
            continue
        name = match[1] or match[2]
        beside = (path.parent, *folders, KERNELS) if match[1] else folders
        target = next((folder / name for folder in beside if (folder / name).is_file()), None)
        if target is None:
            out.append(line if (other := instead(name)) is None else other)
        elif target.resolve() not in seen:
            out.append(_join(target.resolve(), seen, folders, instead))
        out.append(f'#line {number + 1} "{shown}"')
    return "\n".join(out)


def located(joined: str, at: int) -> tuple[str, int]:
    """The file and the line of a place in joined source."""
    marks = list(re.finditer(r'^#line (\d+) "(?:[^"\n]*/)?([^"\n]*)"\n', joined[:at], re.MULTILINE))
    if not marks:
        return "", joined.count("\n", 0, at) + 1
    return marks[-1][2], int(marks[-1][1]) + joined.count("\n", marks[-1].end(), at)


@lru_cache(maxsize=64)
def essence(text: str) -> str:
    """What of a CUDA source makes its code, to be a key: no comments, and one space where there are several.

    Lines stay apart, for they are in the code's line information. It is no source: its literals stand once more at
    its end, as they were.
    """
    literals: list[str] = []

    def bare(found: re.Match[str]) -> str:
        if found[0][0] == "/":
            return "\n" * found[0].count("\n") or " "
        literals.append(found[0])
        return found[0]

    lines = COMMENTS_AND_LITERALS.sub(bare, text).split("\n")
    return "\n".join((*(" ".join(line.split()) for line in lines), *literals))


def _display(path: Path) -> str:
    return path.relative_to(KERNELS).as_posix() if path.is_relative_to(KERNELS) else path.as_posix()


def header_comment(path: Path) -> str:
    """The leading ``//`` lines of a source file, without the slashes: what a rung is about."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("//"):
            break
        lines.append(line[2:].removeprefix(" "))
    return "\n".join(lines)
