"""The rules of the house: layers, public names and their docstrings, what an import loads."""

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


def fresh(code: str) -> str:
    """What a new interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_layers() -> None:
    # In a process of its own: import-linter's logging set-up would silence our logger in other tests.
    said = fresh("from importlinter.cli import lint_imports; "
                 f"lint_imports(config_filename={str(ROOT / 'pyproject.toml')!r}, no_cache=True, no_logo=True)")
    contracts = (ROOT / "pyproject.toml").read_text().count("[[tool.importlinter.contracts]]")
    assert f"Contracts: {contracts} kept, 0 broken" in said, said


def test_public_docstrings() -> None:
    for name in set(peakgemm.__all__) - {"__version__"}:
        thing = getattr(peakgemm, name)
        # A dataclass without one is given its signature.
        assert thing.__doc__ and not thing.__doc__.startswith(f"{name}("), name
        if inspect.isclass(thing):
            public = [member for key, member in vars(thing).items() if not key.startswith("_")]
            assert all(inspect.getdoc(m) for m in public if callable(m) or isinstance(m, property)), name


def test_public_names() -> None:
    assert set(peakgemm.__all__) == {*peakgemm._PUBLIC, "__version__"}
    assert dir(peakgemm) == sorted(peakgemm.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nosuch'"):
        _ = peakgemm.nosuch


def test_import_is_light() -> None:
    loaded = set(fresh("import sys, peakgemm; print(*sys.modules)").split())
    assert not {"torch", "cupy", "numpy", "cuda", "typer", "rich"} & loaded
    assert "peakgemm" in loaded


def test_public_modules_are_imported_by_their_names() -> None:
    said = fresh('''
import sys, peakgemm
from importlib import import_module
for name in ("cupy", "distributed", "jax", "linalg", "torch", "simulator"):
    assert getattr(peakgemm, name) is import_module(f"peakgemm.{name}") is sys.modules[f"peakgemm.{name}"]
print("torch" in sys.modules, "jax" in sys.modules)''')
    assert said.split() == ["False", "False"]


def test_the_wheel_needs_neither_the_workshop_nor_what_makes_the_pages() -> None:
    assert re.search(r'targets\.wheel\]\npackages = \["src/peakgemm"\]', (ROOT / "pyproject.toml").read_text())
    outside = re.compile(r"^\s*(from|import) (lab|docs|tests)\b", re.MULTILINE)
    assert [str(path) for path in PACKAGE.rglob("*.py") if outside.search(path.read_text())] == []


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
