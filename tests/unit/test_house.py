"""The rules of the house: layers, style, where CUDA lives, how long a file is, what an import costs."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import peakgemm

ROOT = Path(__file__).parents[2]
PACKAGE = Path(peakgemm.__file__).parent
PYTHON = sorted(PACKAGE.rglob("*.py"))
CUDA = sorted(path for suffix in ("*.cu", "*.cuh") for path in PACKAGE.rglob(suffix))
LONGEST = 400


def fresh(code: str) -> str:
    """What a new interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_layers() -> None:
    # In a process of its own: import-linter's logging set-up would silence our logger in other tests.
    said = fresh("from importlinter.cli import lint_imports; "
                 f"lint_imports(config_filename={str(ROOT / 'pyproject.toml')!r}, no_cache=True, no_logo=True)")
    contracts = (ROOT / "pyproject.toml").read_text().count("[[tool.importlinter.contracts]]")
    assert f"Contracts: {contracts} kept, 0 broken" in said, said


def test_ruff() -> None:
    done = subprocess.run([sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "concise",
                           str(PACKAGE), str(ROOT / "tests")], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_cuda_lives_in_its_own_files() -> None:
    assert len(CUDA) > 15
    # A definition, not the word: messages and patterns may speak of kernels.
    assert [str(p) for p in PYTHON if re.search(r"__global__\s+void\s+\w+\s*\(", p.read_text())] == []


def test_no_file_is_long() -> None:
    lengths = {str(p.relative_to(PACKAGE)): len(p.read_text().splitlines()) for p in PYTHON + CUDA}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST} == {}


@pytest.mark.parametrize("name", [name for name in peakgemm.__all__ if name != "__version__"])
def test_public_docstrings(name: str) -> None:
    thing = getattr(peakgemm, name)
    assert thing.__doc__
    # A dataclass without one is given its signature.
    assert not thing.__doc__.startswith(f"{name}(")
    if inspect.isclass(thing):
        public = [member for key, member in vars(thing).items() if not key.startswith("_")]
        assert all(inspect.getdoc(m) for m in public if callable(m) or isinstance(m, property))


def test_public_names() -> None:
    assert set(peakgemm.__all__) == {*peakgemm._PUBLIC, "__version__"}
    assert dir(peakgemm) == sorted(peakgemm.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nosuch'"):
        _ = peakgemm.nosuch


def test_every_module_says_what_it_is() -> None:
    bare = [str(p) for p in PYTHON if not re.match(r'(r?"""\S)', p.read_text())]
    assert bare == []


def test_import_is_light() -> None:
    loaded = set(fresh("import sys, peakgemm; print(*sys.modules)").split())
    assert not {"torch", "cupy", "numpy", "cuda", "typer", "rich"} & loaded
    assert "peakgemm" in loaded


def test_import_is_quick() -> None:
    timed = "import time; t = time.perf_counter(); import peakgemm; print(time.perf_counter() - t)"
    assert min(float(fresh(timed)) for _ in range(3)) < 0.25


@pytest.mark.parametrize("name", ["distributed", "jax", "torch", "simulator"])
def test_public_modules_are_imported_by_their_names(name: str) -> None:
    said = fresh(f'''
import sys, peakgemm, peakgemm.{name}
import peakgemm.{name} as one
from peakgemm import {name} as other
from importlib import import_module
assert peakgemm.{name} is one is other is import_module("peakgemm.{name}") is sys.modules[one.__name__]
print("torch" in sys.modules, "jax" in sys.modules)''')
    assert said.split() == ["False", "False"]


def test_every_header_has_its_line() -> None:
    folder = PACKAGE / "kernels" / "include"
    group, told = "", set()
    for line in (folder / "README.md").read_text().splitlines():
        if found := re.match(r"## (\w+)|\| `(\w+\.cuh)` \| \S", line):
            group = found[1] or group
            told |= {f"{group}/{found[2]}"} if found[2] else set()
    assert told == {path.relative_to(folder).as_posix() for path in folder.rglob("*.cuh")}


def test_no_test_imports_a_test() -> None:
    tests = sorted((ROOT / "tests").rglob("*.py"))
    naming = re.compile(r"^\s*(from|import) (\w+\.)*test_\w+", re.MULTILINE)
    assert [str(p) for p in tests if naming.search(p.read_text())] == []


def test_what_the_wheel_contains() -> None:
    """The library, the instruments and the commands; neither the workshop nor what makes the pages."""
    project = (ROOT / "pyproject.toml").read_text()
    assert re.search(r'targets\.wheel\]\npackages = \["src/peakgemm"\]', project)
    folders = {path.parent.relative_to(PACKAGE).parts[0] for path in PYTHON if path.parent != PACKAGE}
    assert folders == {"arrays", "calls", "cli", "integrations", "kernels", "runtime", "sass", "selection", "tools"}
    tools = {path.name for path in (PACKAGE / "tools").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert tools == {"accuracy", "bench", "explore", "inspect", "report", "simulator", "tune"}
    outside = re.compile(r"^\s*(from|import) (lab|docs|tests)\b", re.MULTILINE)
    assert [str(path) for path in PYTHON if outside.search(path.read_text())] == []


def test_files_import_in_no_circle() -> None:
    """Outside of the simulator, whose machine and operations know each other."""
    graph = imports_of_files()
    done: set[str] = set()

    def follow(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join((*way[way.index(name):], name))
        if name not in done:
            for other in graph[name]:
                follow(other, (*way, name))
            done.add(name)

    for name in graph:
        follow(name, ())


def imports_of_files() -> dict[str, set[str]]:
    """Which modules of the package each one imports, anywhere in its text but for type checkers alone."""
    names = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
             for path in PYTHON if "simulator" not in path.parts}
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        package = name if path.stem == "__init__" else name.rpartition(".")[0]
        tree = ast.parse(path.read_text())
        for_mypy = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.If)
                    and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" for inner in ast.walk(node)}
        graph[name] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level and id(node) not in for_mypy:
                above = package.split(".")[:len(package.split(".")) - node.level + 1]
                base = ".".join([*above, node.module or ""]).rstrip(".")
                wanted = {f"{base}.{alias.name}" if f"{base}.{alias.name}" in names else base for alias in node.names}
                graph[name] |= (wanted & names.keys()) - {name, package}
    return graph
