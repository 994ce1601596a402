"""Planted faults: small changes drawn by chance from the sources, and whether the tests find them.

    python -m lab.faults reach reach.json     # the lines that each test file reaches; takes as long as the tests
    python -m lab.faults draw faults.json --count 60 --seed 1
    python -m lab.faults run faults.json reach.json --json results/cpu/faults.json

A fault is one edit of one line: an operator, a comparison or a number changed, a condition negated, a statement
dropped; in Python of the library and the simulator, and in CUDA. It is planted in a copy of the checkout. Only test
files that reach the changed line are run, the quickest first, until one fails; for CUDA, those that read the file.
Lines that run once at import count as reached by each test file that enters their module. Some faults change nothing
that anybody could see, so a score compares two suites on the same faults and says little alone.
Needs coverage.py (`pip install coverage`).
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = "src/peakgemm"
#: Each area's share of the faults: globs below `SOURCE`, and folders left out of them.
AREAS: dict[str, tuple[float, tuple[str, ...], tuple[str, ...]]] = {
    "library": (0.4, ("**/*.py",), ("tools/", "cli/", "sass/", "kernels/")),
    "kernels": (0.3, ("kernels/**/*.py", "kernels/**/*.cu", "kernels/**/*.cuh"), ()),
    "simulator": (0.3, ("tools/simulator/**/*.py",), ()),
}
COMPARE = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "in": "not in", "not in": "in",
           "is": "is not", "is not": "is"}
ARITHMETIC = {"+": "-", "-": "+", "*": "+", "//": "*", "/": "*", "%": "*", "<<": ">>", ">>": "<<", "&": "|", "|": "&"}
MOST_SECONDS = 900  # of one fault's tests


@dataclass(frozen=True)
class Fault:
    """One edit: ``column`` and ``length`` say which characters of the line become ``new``."""

    path: str
    line: int
    column: int
    length: int
    new: str
    kind: str
    top_level: bool

    def plant(self, root: Path) -> None:
        """Edit the file below ``root``."""
        file = root / self.path
        lines = file.read_text().splitlines(keepends=True)
        text = lines[self.line - 1]
        lines[self.line - 1] = text[:self.column] + self.new + text[self.column + self.length:]
        file.write_text("".join(lines))


def python_faults(path: str, text: str) -> Iterator[Fault]:
    """Every fault that a Python file has room for, on nodes that lie within one line."""
    tree = ast.parse(text)
    lines = text.splitlines()
    skipped: set[ast.AST] = set()
    inside: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            inside.update(child for statement in (node.body if isinstance(node.body, list) else [node.body])
                          for child in ast.walk(statement))
        for name in ("annotation", "returns"):
            if (child := getattr(node, name, None)) is not None:
                skipped.update(ast.walk(child))

    def fault(node: Any, start: int, end: int, new: str, kind: str) -> Fault:
        """Byte offsets equal characters: the sources are ASCII, and others are passed over below."""
        return Fault(path, node.lineno, start, end - start, new, kind, node not in inside)

    for node in ast.walk(tree):
        line = getattr(node, "lineno", None)
        if node in skipped or line is None or node.end_lineno != line or not lines[line - 1].isascii():  # type: ignore
            continue
        here = lines[line - 1]
        if isinstance(node, ast.Compare):
            yield from between(node, node.left, node.comparators[0], here, COMPARE, "comparison", fault)
        elif isinstance(node, ast.BinOp) and not isinstance(node.left, ast.Constant | ast.JoinedStr):
            yield from between(node, node.left, node.right, here, ARITHMETIC, "operator", fault)
        elif isinstance(node, ast.BoolOp):
            yield from between(node, node.values[0], node.values[1], here, {"and": "or", "or": "and"}, "logic", fault)
        elif isinstance(node, ast.Constant) and type(node.value) is int and node.end_col_offset is not None:
            yield fault(node, node.col_offset, node.end_col_offset, str(node.value + 1), "number")
        elif isinstance(node, (ast.If, ast.IfExp)) and node.test.end_lineno == node.test.lineno == line:
            test = node.test
            yield fault(node, test.col_offset, test.end_col_offset or 0,
                        f"not ({here[test.col_offset:test.end_col_offset]})", "condition")
        elif isinstance(node, (ast.Expr, ast.AugAssign)) and not isinstance(getattr(node, "value", None), ast.Constant):
            yield fault(node, node.col_offset, node.end_col_offset or 0, "pass", "dropped statement")


def between(node: Any, left: Any, right: Any, here: str, swaps: dict[str, str], kind: str, fault: Any
            ) -> Iterator[Fault]:
    """The operator that stands between two operands."""
    gap = here[left.end_col_offset:right.col_offset]
    operator = gap.strip(" ()")
    if operator in swaps:
        start = left.end_col_offset + gap.index(operator)
        yield fault(node, start, start + len(operator), swaps[operator], kind)


TOKEN = re.compile(r"(?P<skip>//.*|\"(?:[^\"\\]|\\.)*\"|::|->|\+\+|--|[<>]{3}|#.*|template.*|\b0x\w+|[\w.]*\.\w*)"
                   r"|(?P<compare><=|>=|==|!=)|(?P<logic>&&|\|\|)|(?P<operator> [-+*%<>] )|(?P<number>\b\d+\b)")
CUDA = {"<=": "<", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&", " + ": " - ", " - ": " + ",
        " * ": " + ", " % ": " * ", " < ": " <= ", " > ": " >= "}
STATEMENT = re.compile(r"\s*(?P<code>[a-z_][\w:]*(?:<[^;]*>)?\([^;{}]*\);)\s*(?://.*)?$")


def cuda_faults(path: str, text: str) -> Iterator[Fault]:
    """Every fault that a CUDA file has room for, outside comments, strings and directives."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.isascii() or line.lstrip().startswith(("*", "/*")):
            continue
        if call := STATEMENT.match(line):
            yield Fault(path, number, call.start("code"), len(call["code"]), ";", "dropped statement", False)
        for match in TOKEN.finditer(line):
            kind = match.lastgroup
            if kind in (None, "skip"):
                continue
            new = str(int(match[0]) + 1) if kind == "number" else CUDA[match[0]]
            yield Fault(path, number, match.start(), len(match[0]), new, str(kind), False)


def draw(count: int, seed: int) -> list[Fault]:
    """Faults by chance: an area by its share, a file by its lines, then a kind, then a fault of that kind."""
    chance = random.Random(seed)
    drawn: list[Fault] = []
    for area, (share, globs, without) in AREAS.items():
        files = sorted({file for pattern in globs for file in (ROOT / SOURCE).glob(pattern)
                        if not str(file.relative_to(ROOT / SOURCE)).startswith(without)})
        texts = {str(file.relative_to(ROOT)): file.read_text() for file in files}
        weights = [text.count("\n") for text in texts.values()]
        wanted = round(count * share) if area != "simulator" else count - len(drawn)
        chosen: list[Fault] = []
        while len(chosen) < wanted:
            path = chance.choices(list(texts), weights)[0]
            kinds: dict[str, list[Fault]] = defaultdict(list)
            for fault in (python_faults if path.endswith(".py") else cuda_faults)(path, texts[path]):
                kinds[fault.kind].append(fault)
            if kinds and (fault := chance.choice(kinds[chance.choice(sorted(kinds))])) not in chosen:
                chosen.append(fault)
        drawn += chosen
    return drawn


class Opened:
    """A pytest plugin that writes which CUDA files were read in this process."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.names: set[str] = set()
        sys.addaudithook(self._audit)

    def _audit(self, event: str, args: Any) -> None:
        if event == "open" and isinstance(args[0], str | os.PathLike) and str(args[0]).endswith((".cu", ".cuh")):
            self.names.add(os.path.relpath(args[0], ROOT))

    def pytest_sessionfinish(self) -> None:
        """Write what was seen."""
        self.out.write_text(json.dumps(sorted(self.names)))


def run_pytest(root: Path, file: str, seconds: float, *more: str, runner: tuple[str, ...] = ()
               ) -> tuple[int, str, float]:
    """Exit status (-1: out of time), the end of its output, and CPU seconds of a test file in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)]),
                   "PYTHONDONTWRITEBYTECODE": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        done = subprocess.run([sys.executable, "-m", *runner, "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider",
                               *more, file], cwd=root, env=environment, capture_output=True, text=True, timeout=seconds)
        status, output = done.returncode, done.stdout[-600:] + done.stderr[-200:]
    except subprocess.TimeoutExpired:
        status, output = -1, "out of time"
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return status, output, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_files() -> list[str]:
    """Those that `make test` runs."""
    return sorted(str(file.relative_to(ROOT)) for folder in ("unit", "compile", "simulate")
                  for file in (ROOT / "tests" / folder).rglob("test_*.py"))


def lines_of(folder: Path) -> dict[str, list[int]]:
    """The lines that coverage.py's data files in ``folder`` hold, by source file."""
    from coverage import CoverageData
    from coverage.exceptions import DataError

    lines: dict[str, set[int]] = defaultdict(set)
    for file in folder.glob("coverage.*"):
        data = CoverageData(str(file))
        try:
            data.read()
        except DataError:  # of a process that its test killed
            continue
        for name in data.measured_files():
            lines[os.path.relpath(name, ROOT)].update(data.lines(name) or ())
    return {name: sorted(numbers) for name, numbers in lines.items()}


def reach(out: Path, junit: Path | None) -> None:
    """Run each test file in a process of its own and write which lines it reaches."""
    rows: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    for file in test_files():
        if file in rows:
            continue
        with tempfile.TemporaryDirectory() as folder:
            data, opened, settings = (Path(folder) / name for name in ("coverage", "opened.json", "settings"))
            settings.write_text(f"[run]\nparallel = true\nsource = {ROOT / SOURCE}\ndata_file = {data}\n"
                                "patch = subprocess\nconcurrency = thread\n")
            more = [f"--junitxml={junit / (Path(file).stem + '.xml')}"] if junit else []
            status, output, seconds = run_pytest(ROOT, file, 3600, "-p", "lab.faults", f"--opened={opened}", *more,
                                                 runner=("coverage", "run", f"--rcfile={settings}", "-m"))
            if status not in (0, 5):
                print(f"{file} fails without a fault:\n{output}", flush=True)
            rows[file] = {"lines": lines_of(Path(folder)), "seconds": round(seconds, 2), "passes": status == 0,
                          "opened": json.loads(opened.read_text()) if opened.exists() else []}
        out.write_text(json.dumps(rows))
        print(f"{seconds:7.1f} s  {file}", flush=True)


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--opened", type=Path)


def pytest_configure(config: Any) -> None:
    if config.getoption("--opened"):
        config.pluginmanager.register(Opened(config.getoption("--opened")))


def tests_of(fault: Fault, rows: dict[str, Any]) -> list[str]:
    """Test files that reach the line, or enter its module where it runs at import; the quickest first."""
    def reaches(row: dict[str, Any]) -> bool:
        if not fault.path.endswith(".py"):
            return fault.path in row["opened"]
        lines = row["lines"].get(fault.path, ())
        return bool(lines) if fault.top_level else fault.line in lines

    return sorted((file for file, row in rows.items() if row["passes"] and reaches(row)),
                  key=lambda file: float(rows[file]["seconds"]))


def try_fault(fault: Fault, rows: dict[str, Any]) -> dict[str, Any]:
    """Plant the fault in a copy and run the tests that reach it."""
    line = (ROOT / fault.path).read_text().splitlines()[fault.line - 1].strip()
    row = {**asdict(fault), "text": line, "found_by": None, "tests": len(tests_of(fault, rows))}
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "checkout"
        shutil.copytree(ROOT, root, symlinks=True, ignore=shutil.ignore_patterns(
            ".git", "build", "node_modules", ".venv", "__pycache__", ".*_cache", ".whl", "dist"))
        fault.plant(root)
        for file in tests_of(fault, rows):
            status, output, _ = run_pytest(root, file, 60 + 6 * rows[file]["seconds"])
            if status not in (0, 5):
                failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.M)
                row["found_by"] = failed[0] if failed else file
                break
            if time.monotonic() - start > MOST_SECONDS:
                row["found_by"] = None
                break
    verdict = "found" if row["found_by"] else "MISSED"
    print(f"{verdict:7} {fault.kind:18} {fault.path}:{fault.line}  {line[:70]}", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    reaching = commands.add_parser("reach")
    reaching.add_argument("file", type=Path)
    reaching.add_argument("--junit", type=Path, help="a folder for the times of each test")
    drawing = commands.add_parser("draw")
    drawing.add_argument("file", type=Path)
    drawing.add_argument("--count", type=int, default=60)
    drawing.add_argument("--seed", type=int, default=1)
    running = commands.add_parser("run")
    running.add_argument("faults", type=Path)
    running.add_argument("reach", type=Path)
    running.add_argument("--jobs", type=int, default=2)
    running.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.command == "reach":
        reach(args.file, args.junit)
    elif args.command == "draw":
        faults = draw(args.count, args.seed)
        args.file.write_text(json.dumps([asdict(fault) for fault in faults], indent=1))
        print(f"{len(faults)} faults in {len({fault.path for fault in faults})} files")
    else:
        faults = [Fault(**fault) for fault in json.loads(args.faults.read_text())]
        rows = json.loads(args.reach.read_text())
        with ThreadPoolExecutor(args.jobs) as pool:
            tried = list(pool.map(lambda fault: try_fault(fault, rows), faults))
        print(f"{sum(row['found_by'] is not None for row in tried)} of {len(tried)} found")
        if args.json:
            args.json.write_text(json.dumps({"command": " ".join(sys.argv[1:]), "faults": tried}, indent=1))


if __name__ == "__main__":
    main()
