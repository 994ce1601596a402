"""Nobody outside a family asks which kernel is at hand: what others want to know is a field or a function of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

import peakgemm
from peakgemm.kernels import library
from peakgemm.kernels.library import EMULATED, KERNELS
from peakgemm.kernels.profile import Profile
from peakgemm.kernels.registry import LADDER, Kernel

PACKAGE = Path(peakgemm.__file__).parent
OWN = ("kernels/ffma/", "kernels/emulated/")  # where families are
NAMES = {"PRODUCTS", "OLDER", "KERNELS", "EMULATED",
         *(name for name, value in vars(library).items() if isinstance(value, Kernel))}
FACTS = (".folder", ".kernel.name", ".family.name", "arch.number", "limits.number")


def questions(text: str) -> Iterator[int]:
    """The lines that compare a kernel with one of the library's, its folder or name with a word, or an architecture's
    number with another; or that ask for the type of what was bound."""
    tree = ast.parse(text)
    others = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
              and "kernels" not in (node.module or "") for alias in node.names}
    others |= {ast.unparse(target) for node in tree.body if isinstance(node, ast.Assign) for target in node.targets}
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [each for side in (node.left, *node.comparators) for each in getattr(side, "elts", [side])]
            words = [ast.unparse(side) for side in sides]
            constant = any(isinstance(side, ast.Constant) for side in sides)
            kernels = {word.removesuffix(".values()").rpartition(".")[2] for word in words} & NAMES - others
            if kernels or (constant and any(word.endswith(FACTS) for word in words)):
                yield node.lineno
        elif (isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance"
              and ast.unparse(node.args[1]) in ("Bound", "Family")):
            yield node.lineno


def test_nobody_asks_which_kernel_it_is() -> None:
    found = [f"{path.relative_to(PACKAGE)}:{line}" for path in sorted(PACKAGE.rglob("*.py"))
             if not path.relative_to(PACKAGE).as_posix().startswith(OWN) for line in questions(path.read_text())]
    assert found == []


@pytest.mark.parametrize("question", [
    "kernel is WIDE", "kernel not in (SMALL, CHAIN)", "kernel == streamed.FUSED", 'kernel.folder == "emulated"',
    'choice.kernel.name == "wide"', "kernel in PRODUCTS.values()", "limits.number != 90", "gpu.arch.number >= 90",
    "isinstance(bound, Bound)"])
def test_questions_are_seen(question: str) -> None:
    assert list(questions(f"if {question}:\n    pass"))


@pytest.mark.parametrize("kernel", [*KERNELS, *EMULATED], ids=lambda kernel: f"{kernel.label} {kernel.family.name}")
def test_a_kernel_is_two_files(kernel: Kernel) -> None:
    """Its source, and the module of its family, of the same name or that of another kernel by the same scheme."""
    assert kernel.path.is_file()
    assert kernel.family.numbers in {field.name for field in fields(Profile)}, (
        "Family.numbers names the section of a profile that the cost model reads; another family's will do at first")
    assert kernel.path.with_suffix(".py").is_file() or kernel.stem == "product_mma"


def test_kernels_of_one_name_are_told_apart() -> None:
    names = [(kernel.name, kernel.family.name) for kernel in (*KERNELS, *EMULATED)]
    assert len(set(names)) == len(names)
    assert len({kernel.entry for kernel in LADDER}) == len(LADDER) - sum(kernel.patched for kernel in LADDER)
