"""The rules of the house: layers, public names and their docstrings, what an import loads."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import peakgemm

ROOT = Path(__file__).parents[2]
PACKAGE = Path(peakgemm.__file__).parent


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
for name in ("distributed", "jax", "torch", "simulator"):
    assert getattr(peakgemm, name) is import_module(f"peakgemm.{name}") is sys.modules[f"peakgemm.{name}"]
print("torch" in sys.modules, "jax" in sys.modules)''')
    assert said.split() == ["False", "False"]


def test_the_wheel_needs_neither_the_workshop_nor_what_makes_the_pages() -> None:
    assert re.search(r'targets\.wheel\]\npackages = \["src/peakgemm"\]', (ROOT / "pyproject.toml").read_text())
    outside = re.compile(r"^\s*(from|import) (lab|docs|tests)\b", re.MULTILINE)
    assert [str(path) for path in PACKAGE.rglob("*.py") if outside.search(path.read_text())] == []
