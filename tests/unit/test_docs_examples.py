"""The examples of the pages run, commands parse; those that name a library run where it and a GPU are."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_lines import parsed
from peakgemm.runtime.device import reason_without_gpu
from peakgemm.sass import patch
from peakgemm.tools import simulator

DOCS = (Path(__file__).parents[2] / "docs").resolve()
PAGE = DOCS / "arrays.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
PLAIN = [x for x in EXAMPLES if not x.startswith("# needs")]
FOREIGN = [x for x in EXAMPLES if x.startswith("# needs")]


def test_numpy(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for example in PLAIN:
        exec(compile(example, str(PAGE), "exec"), names)
    assert len(PLAIN) >= 6
    assert "out overlaps a" in capsys.readouterr().out


def test_large_products() -> None:
    page = PAGE.with_name("large.md")
    names: dict[str, Any] = {}
    examples = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    for example in examples:
        exec(compile(example, str(page), "exec"), names)
    assert len(examples) == 3


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


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


# Where the examples of each page run. Those of the guide to a new kernel are excerpts (test_published.py).
RUN_HERE = ("emulation.md", "inspect.md", "simulator.md", "explorer.md")
ON_A_GPU = ("ladder.md", "../README.md")
ELSEWHERE = ("api.md", "sass.md", "reproducible.md", "precisions.md", "arrays.md", "accuracy.md", "torch.md", "jax.md",
             "contributing/add-a-kernel.md", "large.md",
             "distributed.md")  # of torchrun's ranks: what it calls is in support/distributed_ranks.py


def test_every_page_with_examples_is_run() -> None:
    found = {path for path in [*DOCS.rglob("*.md"), DOCS.parent / "README.md"] if blocks(path, "python")}
    assert found <= {(DOCS / name).resolve() for name in (*RUN_HERE, *ON_A_GPU, *ELSEWHERE)}


@pytest.mark.parametrize("name", RUN_HERE)
def test_examples_without_a_gpu(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, in a folder with the page's ``.cu`` files; then what they define as tests."""
    page, names = DOCS / name, dict[str, Any]()
    monkeypatch.chdir(tmp_path)
    for title, code in re.findall(r"`(\w+\.cu)`:\n\n```cuda\n(.*?)^```", page.read_text(), re.M | re.S):
        (tmp_path / title).write_text(code)
    for example in blocks(page, "python"):
        exec(compile(example, str(page), "exec"), names)
    for what, value in list(names.items()):
        if what.startswith("test_"):
            value()


def test_the_example_of_sass() -> None:
    """As it is printed, with nothing given."""
    pytest.importorskip("cuda.bindings", reason="needs NVRTC")
    example, = blocks(DOCS / "sass.md", "python")
    names = dict[str, Any]()
    exec(compile(example, "sass.md", "exec"), names)
    assert patch.apply(names["code"], names["text"]) == names["made"]


@pytest.mark.parametrize("name", ON_A_GPU)
def test_examples_on_a_gpu(name: str) -> None:
    if find_spec("torch") is None or reason_without_gpu() is not None:
        pytest.skip("needs torch and a GPU")
    names: dict[str, Any] = {}
    for example in blocks(DOCS / name, "python"):
        exec(compile(example, name, "exec"), names)


COMMANDS = [(path.name, re.split(r"  #|   ", line)[0].strip())
            for path in [*DOCS.rglob("*.md"), DOCS.parent / "README.md"]
            for block in re.findall(r"^```(?:sh)?\n(.*?)^```", path.read_text(), re.M | re.S)
            for line in block.splitlines() if re.match(r"(\.venv/bin/)?peakgemm [a-z-]", line)]


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_commands_of_the_pages_parse(page: str, line: str) -> None:
    parsed(line.removeprefix(".venv/bin/"))


def test_the_first_kernel_costs_what_the_page_says(tmp_path: Path) -> None:
    page = DOCS / "first-steps.md"
    code, = blocks(page, "cuda")
    said = re.search(r"([\d,]+) wavefronts where (\d+) would do", page.read_text())
    assert said is not None
    for text, counted in ((code, int(said[1].replace(",", ""))), (code.replace("[32][32]", "[32][33]"), int(said[2]))):
        (tmp_path / "mine.cu").write_text(text)
        a = np.arange(1024, dtype=np.float32).reshape(32, 32)
        out = np.zeros_like(a)
        report = simulator.run(tmp_path / "mine.cu", grid=1, block=(32, 32), args=[a, out])
        assert report.clean and (out == a.T).all()
        assert report.counters["shared_wavefronts"] == counted
        assert report.counters["shared_wavefronts_ideal"] == int(said[2])
