"""The examples of docs/arrays.md run; those that name a library run where it and a GPU are."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from peakgemm.runtime.device import reason_without_gpu

PAGE = Path(__file__).parents[2] / "docs" / "arrays.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
PLAIN = [x for x in EXAMPLES if not x.startswith("# needs")]
FOREIGN = [x for x in EXAMPLES if x.startswith("# needs")]


def test_numpy(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for example in PLAIN:
        exec(compile(example, str(PAGE), "exec"), names)
    assert len(PLAIN) >= 6
    assert "out overlaps a" in capsys.readouterr().out


@pytest.mark.parametrize("example", FOREIGN, ids=lambda x: x.split()[2])
def test_other_libraries(example: str) -> None:
    name = example.split()[2]
    if find_spec(name) is None or reason_without_gpu() is not None:
        pytest.skip(f"needs {name} and a GPU")
    if name == "jax" and __import__("jax").default_backend() != "gpu":
        pytest.skip("JAX has no GPU here")
    names: dict[str, Any] = {"pg": __import__("peakgemm")}
    exec(compile(example, str(PAGE), "exec"), names)


@pytest.mark.parametrize("page", ["reproducible.md", "jax.md", "precisions.md"])
def test_pages_of_their_own(page: str) -> None:
    if page == "jax.md":
        pytest.importorskip("jax", reason="needs jax")
    text = (PAGE.parent / page).read_text()
    if page == "jax.md" and __import__("jax").default_backend() != "cpu":
        pytest.skip("figures of the CPU")
    names: dict[str, Any] = {}
    examples = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    for example in examples:
        exec(compile(example, page, "exec"), names)
    assert examples
    if page == "jax.md":
        said = "\n".join(line[2:] for line in text.splitlines() if line.startswith("# peakgemm") or "#   " in line[:4])
        assert str(names["ours"].report) == said


def test_each_library_has_an_example() -> None:
    assert [x.split()[2] for x in FOREIGN] == ["torch", "cupy", "jax"]
