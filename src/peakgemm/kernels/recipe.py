"""What a kernel is compiled from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..problem import Problem, Triangle
from ..runtime import source
from ..runtime.compile import FACTS, Compiled, Kind, Reading, compile_source, stored_loop
from . import shipped

if TYPE_CHECKING:
    from .patched import Edit


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that a compilation is made from."""

    text: str
    entry: str
    arch: str
    macros: dict[str, int]
    file: str
    bare_loop: bool = False  # see `registry.Kernel`
    edit: Edit | None = None  # of the compiler's cubin

    def __hash__(self) -> int:
        return hash((self.entry, self.arch, self.file, *self.macros.items()))

    @property
    def name(self) -> str:
        """What the shipped cubin of this very compilation is called."""
        return shipped.digest(self.text, self.entry, self.arch, self.macros)

    def make(self, kind: Kind) -> Compiled:
        """The cubin that is shipped for this compilation, or the compiler's.

        Raises:
            CompileFailed, MissingComponent: see `compile_source`.
        """
        found = shipped.find(self.name, self.entry, self.arch) if kind == "cubin" else None
        return found or self.compile(kind)

    def compile(self, kind: Kind = "cubin") -> Compiled:
        """The compiler's, edited where the recipe says so, whatever is shipped."""
        edit = self.edit if kind == "cubin" else None
        reading = edit.reading if edit is not None else LOOP if self.bare_loop and kind == "cubin" else None
        compiled = compile_source(self.text, self.entry, self.arch, self.macros, kind, self.file, reading=reading)
        return compiled if edit is None else edit.apply(compiled)

    def known_loop(self) -> Mapping[str, Any] | None:
        """The figures of its main loop, if it has been compiled before, here or for the wheel."""
        cubins = shipped.index(shipped.container(self.arch)).cubins
        loop: Mapping[str, Any] | None = (
            cubins[self.name][2][FACTS.index("loop")] if self.name in cubins
            else stored_loop(self.text, self.entry, self.arch, self.macros, self.file, LOOP))
        return loop


def triangle_macro(problem: Problem) -> dict[str, int]:
    """The macro of a product that computes one triangle of C (include/scheduler/triangle.cuh)."""
    return {"TRIANGLE": problem.triangle.value} if problem.triangle is not Triangle.NONE else {}


@cache
def text_of(path: Path) -> str:
    """The joined source of a file beside the kernels."""
    return source.assemble(path)


def _read_loop(code: bytes, entry: str) -> dict[str, Any] | None:
    from ..sass.compiled_loop import SAMPLE, read  # where something is compiled, and nowhere else

    loop = read(code, entry, most=SAMPLE)
    return None if loop is None else loop.to_json()


LOOP = Reading("figures of the main loop", _read_loop)
