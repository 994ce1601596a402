"""A new rung of the ladder, begun from one that there is: its source, its row and its configurations.

    python -m lab.new rung swizzled_tile                     after the last rung
    python -m lab.new rung swizzled_tile --like 4 --number 18

Writes ``ladder/NN_name.cu`` (a copy of the rung ``--like``, its header to be filled in), the row in `registry.LADDER`
and the entry in configs.json. All else follows from these: tests, commands, the simulator, the tables of the pages,
where the rung is "not measured" until a ladder's record holds it. Nothing is written if any of the three is there.
docs/contributing/add-a-kernel.md says what to do next.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from pathlib import Path

from peakgemm.errors import InvalidValue, PeakgemmError
from peakgemm.kernels.registry import LADDER, Kernel, rung

ROOT = Path(__file__).resolve().parents[1]
KERNELS = Path("src/peakgemm/kernels")
IDEA = "say the idea in a line"
HEADER = """\
// {number:02} {words}
//
// Idea: {idea}.
// Removes: the bottleneck of {like} that this removes, with its counter.
// Leaves: the bottleneck that is left.
"""


def new_rung(root: Path, name: str, number: int, like: Kernel) -> list[Path]:
    """Write the files of a rung into the checkout ``root``; gives those that were written or changed.

    Raises:
        InvalidValue: the name or the number is taken or cannot be one, or ``like`` has no source of its own.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise InvalidValue(f"name = {name!r} must be lower case letters, digits and underscores, such as swizzled_tile")
    if taken := [kernel.label for kernel in LADDER if kernel.number == number or kernel.name == name]:
        raise InvalidValue(f"rung {number:02} {name} is taken by {', '.join(taken)}; give another name or --number")
    if not 0 <= number < 100:
        raise InvalidValue(f"number = {number} must be from 0 to 99: names of files have two digits")
    if like.patched:
        raise InvalidValue(f"rung {like.label} has no source of its own; give --like {like.source_name[:2]}")
    source = root / KERNELS / "ladder" / f"{number:02}_{name}.cu"
    registry, configs = root / KERNELS / "registry.py", root / KERNELS / "configs.json"
    texts = {source: _source(like, number, name),
             registry: _with_row(registry.read_text(encoding="utf-8"), like.number, number, name),
             configs: _with_entry(configs.read_text(encoding="utf-8"), like.name, name)}
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return list(texts)


def _source(like: Kernel, number: int, name: str) -> str:
    """The source of ``like`` under the new name, with a header that is to be filled in."""
    lines = like.path.read_text(encoding="utf-8").splitlines(keepends=True)
    start = next(i for i, line in enumerate(lines) if not line.startswith("//"))
    header = HEADER.format(number=number, words=name.replace("_", " "), idea=IDEA, like=f"rung {like.number:02}")
    return header + "".join(lines[start:]).replace(like.entry, f"sgemm_{number:02}_{name}")


def _with_row(registry: str, like: int, number: int, name: str) -> str:
    """The registry with a copy of the row of ``like``, in its place by ``number``."""
    tree = ast.parse(registry)
    ladder = next(node.value for node in tree.body if isinstance(node, ast.AnnAssign)
                  and isinstance(node.target, ast.Name) and node.target.id == "LADDER")
    assert isinstance(ladder, ast.Tuple)
    rows = {_number(row): row for row in ladder.elts if isinstance(row, ast.Call)}
    lines = registry.splitlines(keepends=True)
    own = rows[like]
    text = "".join(lines[own.lineno - 1:own.end_lineno])
    old_name, old_idea = (ast.get_source_segment(registry, argument) or "" for argument in own.args[1:3])
    text = text.replace(f"({like}, {old_name}", f'({number}, "{name}"', 1).replace(old_idea, f'"{IDEA}"', 1)
    after = min((row.lineno for other, row in rows.items() if other > number), default=None)
    place = after - 1 if after is not None else (ladder.end_lineno or 0) - 1
    return "".join([*lines[:place], text, *lines[place:]])


def _number(row: ast.Call) -> int:
    first = row.args[0]
    assert isinstance(first, ast.Constant) and isinstance(first.value, int)
    return first.value


def _with_entry(configs: str, like: str, name: str) -> str:
    """configs.json with a copy of the entry of ``like``, before it; the text is otherwise as it was."""
    start = configs.index(f'\n "{like}": ') + 1
    opening = configs.index("{", start)
    _, end = json.JSONDecoder().raw_decode(configs, opening)
    return f'{configs[:start]} "{name}": {configs[opening:end]},\n{configs[start:]}'


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.new", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["rung"])
    parser.add_argument("name", help="lower case, with underscores")
    parser.add_argument("--number", type=int, default=LADDER[-1].number + 1)
    parser.add_argument("--like", type=int, default=4, help="the rung to begin from")
    given = parser.parse_args(words)
    try:
        for path in new_rung(ROOT, given.name, given.number, rung(given.like)):
            print(path.relative_to(ROOT))
    except PeakgemmError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"Next: write the kernel and its header, then: peakgemm ladder --rungs {given.number:02}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
