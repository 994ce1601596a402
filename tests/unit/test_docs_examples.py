"""The examples of the pages run, commands parse; those that name a library run where it and a GPU are."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from command_lines import parsed
from peakgemm.runtime.device import reason_without_gpu
from peakgemm.sass import patch
from seldom import exhaustive

DOCS = (Path(__file__).parents[2] / "docs").resolve()
# Where the examples of each page run. Those of
# distributed.md are for torchrun's ranks: what they call is in support/distributed_ranks.py.
RUN_HERE = ("emulation.md", "simulator.md", "explorer.md", "accuracy.md", "large.md", "reproducible.md",
            "precisions.md", "arrays.md", "linalg.md", "programs.md", "certificate.md")
SLOW = ("jax.md",)  # for make test-all
ON_A_GPU = ("index.md", "ladder.md", "../README.md")
ELSEWHERE = ("api.md", "sass.md", "torch.md", "distributed.md")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def needs(example: str) -> str | None:
    """The library that an example says it needs, and with it a GPU."""
    return example.split()[2] if example.startswith("# needs") else None


def run(page: Path, examples: list[str], **names: Any) -> dict[str, Any]:
    for example in examples:
        exec(compile(example, str(page), "exec"), names)
    return names


def test_every_page_with_examples_is_run() -> None:
    found = {path for path in [*DOCS.rglob("*.md"), DOCS.parent / "README.md"] if blocks(path, "python")}
    assert found == {(DOCS / name).resolve() for name in (*RUN_HERE, *SLOW, *ON_A_GPU, *ELSEWHERE)}


@pytest.mark.parametrize("name", [*RUN_HERE, *map(exhaustive, SLOW)])
def test_examples_without_a_gpu(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, in a folder with the page's ``.cu`` files; then what they define as tests."""
    page = DOCS / name
    if name == "jax.md" and pytest.importorskip("jax", reason="needs jax").default_backend() != "cpu":
        pytest.skip("figures of the CPU")
    monkeypatch.chdir(tmp_path)
    for title, code in re.findall(r"`(\w+\.cu)`:\n\n```cuda\n(.*?)^```", page.read_text(), re.M | re.S):
        (tmp_path / title).write_text(code)
    for what, value in list(run(page, [code for code in blocks(page, "python") if needs(code) is None]).items()):
        if what.startswith("test_"):
            value()


@pytest.mark.parametrize("example", [code for code in blocks(DOCS / "arrays.md", "python") if needs(code)], ids=needs)
def test_other_libraries(example: str) -> None:
    name = needs(example)
    if name is None or find_spec(name) is None or reason_without_gpu() is not None:
        pytest.skip(f"needs {name} and a GPU")
    if name == "jax" and __import__("jax").default_backend() != "gpu":
        pytest.skip("JAX has no GPU here")
    run(DOCS / "arrays.md", [example], pg=__import__("peakgemm"))


def test_the_example_of_sass() -> None:
    """As it is printed, with nothing given."""
    pytest.importorskip("cuda.bindings", reason="needs NVRTC")
    names = run(DOCS / "sass.md", blocks(DOCS / "sass.md", "python"))
    assert patch.apply(names["code"], names["text"]) == names["made"]


@pytest.mark.parametrize("name", ON_A_GPU)
def test_examples_on_a_gpu(name: str) -> None:
    if find_spec("torch") is None or reason_without_gpu() is not None:
        pytest.skip("needs torch and a GPU")
    run(DOCS / name, blocks(DOCS / name, "python"))


def test_commands_of_the_pages_parse() -> None:
    lines = [line for path in [*DOCS.rglob("*.md"), DOCS.parent / "README.md"]
             for block in re.findall(r"^```(?:sh)?\n(.*?)^```", path.read_text(), re.M | re.S)
             for line in block.splitlines() if re.match(r"(\.venv/bin/)?peakgemm [a-z-]", line)]
    assert len(lines) > 30
    for line in lines:
        parsed(re.split(r"  #|   ", line)[0].strip().removeprefix(".venv/bin/"))


