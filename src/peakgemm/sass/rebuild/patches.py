"""Patches: a recipe, the one cubin that it was proved and measured for, and the one cubin that it must give.

A patch is a small JSON file that can be reviewed, for it holds no code: `loop.rebuild` makes that, from the compiler's.
Where the compiler's output is another, by another NVRTC or source, no patch fits, and the compiler's code runs. What
counts as output is what the GPU is given: line tables hold times and comments' lines, and differ from run to run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ...errors import InvalidValue
from ...problem import Config
from ..elf import Cubin
from .loop import rebuild
from .recipe import Recipe

FOLDER = Path(__file__).parent.parent / "patches"
_FIELDS: Mapping[str, type] = {"kernel": str, "config": dict, "arch": str, "compiler": str, "cubin": str, "limit": int,
                               "recipe": dict, "registers": int, "result": str}
_RUN = (".text.", ".nv.info.", ".nv.shared.", ".nv.constant0.")  # the sections that `digest` reads


def digest(cubin: bytes) -> str:
    """SHA-256, in hexadecimal, of what a cubin's kernels run: code, attributes, registers, shared and argument space.

    Not of debug information, nor of symbols and the constants that they name: NVRTC puts those in another order from
    one compilation to the next.
    """
    found, whole = Cubin.read(cubin), hashlib.sha256()
    whole.update(found.arch.encode())
    for section in sorted(found.sections, key=lambda one: one.name):
        if section.name.startswith(_RUN):
            whole.update(f"\n{section.name} {section.kind} {section.flags} {section.size}\n".encode())
            whole.update(found.content(section))
    for name, kernel in sorted(found.kernels.items()):
        whole.update(f"\n{name} {kernel.registers}".encode())
    return whole.hexdigest()


@dataclass(frozen=True)
class Patch:
    """``cubin`` and ``result`` are the `digest` of the compiler's file and of the patched one.

    ``limit`` is the registers that a thread may have, ``registers`` those that it then has. By ``config``, a tile's
    fields, and ``compiler`` a compilation knows that it should give ``cubin``, and tries again where it does not.
    """

    name: str
    kernel: str
    config: Mapping[str, Any]
    arch: str
    compiler: str
    cubin: str
    limit: int
    recipe: Recipe
    registers: int
    result: str

    @classmethod
    def from_json(cls, name: str, text: str) -> Patch:
        """Read a patch.

        Raises:
            InvalidValue: it is damaged; the message says where.
        """
        try:
            found = json.loads(text)
        except ValueError as error:
            raise InvalidValue(f"{name} is no patch: {error}") from None
        if not isinstance(found, dict) or set(found) != set(_FIELDS):
            raise InvalidValue(f"{name} is no patch: it has exactly the fields {', '.join(_FIELDS)}")
        for field, kind in _FIELDS.items():
            if type(found[field]) is not kind:
                raise InvalidValue(f"{name} is no patch: {field} = {found[field]!r} should be a {kind.__name__}")
        return cls(name, **{**found, "recipe": Recipe.from_json(found["recipe"])})

    def to_json(self) -> str:
        """The text of the file."""
        rows = {field: getattr(self, field) for field in _FIELDS}
        rows["recipe"], rows["config"] = self.recipe.to_json(), dict(self.config)
        return "{\n" + ",\n".join(f' "{field}": {json.dumps(value)}' for field, value in rows.items()) + "\n}\n"

    @property
    def key(self) -> bytes:
        """Under which the disk cache keeps the result, a whole file."""
        return hashlib.sha256(f"patched {self.cubin} {self.result}".encode()).digest()

    def stored(self, hit: tuple[bytes, dict[str, Any]] | None) -> bytes | None:
        """What the disk cache holds, if it is the result."""
        return hit[0] if hit is not None and digest(hit[0]) == self.result else None

    def apply(self, cubin: bytes) -> bytes:
        """The patched cubin: the loop built anew, proved, and compared with what the patch promises.

        Raises:
            InvalidValue: another cubin than the patch's, a loop that cannot be built by its recipe, or another result.
        """
        if (before := digest(cubin)) != self.cubin:
            raise InvalidValue(f"patch {self.name} is for the cubin of SHA-256 {self.cubin}, not for {before}")
        made = rebuild(Cubin.read(cubin), self.recipe, self.limit, self.kernel)
        if (after := digest(made.cubin)) != self.result or made.registers != self.registers:
            raise InvalidValue(f"patch {self.name} gives a cubin of SHA-256 {after} with {made.registers} registers, "
                               f"and promises {self.result} with {self.registers}; the patch is damaged, or its maker "
                               "has changed: peakgemm sass optimize makes it anew")
        return made.cubin


@cache
def shipped() -> tuple[Patch, ...]:
    """The patches of this package.

    Raises:
        InvalidValue: one is damaged.
    """
    return tuple(Patch.from_json(path.stem, path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json")))


def meant(kernel: str, config: Config, arch: str) -> Patch | None:
    """The patch for this compilation of ``kernel``, whatever the compiler then makes; None where one is damaged."""
    try:
        return next((patch for patch in shipped() if (patch.kernel, patch.config, patch.arch)
                     == (kernel, config.to_json(), arch)), None)
    except InvalidValue:  # `find` says which
        return None


def find(cubin: bytes, kernel: str, arch: str, config: Config) -> tuple[Patch | None, str]:
    """The patch for exactly this output of the compiler, made of ``config``, or None and why there is none."""
    try:
        known = [patch for patch in shipped() if patch.kernel == kernel and patch.arch == arch]
    except InvalidValue as error:
        return None, str(error)
    this = digest(cubin)
    for patch in known:
        if patch.cubin == this:
            return patch, ""
    if not known:
        return None, f"there is no patch for {kernel} on {arch}"
    alike = [patch for patch in known if patch.config == config.to_json()]
    if not alike:
        aligned = next((patch for patch in known if patch.config == replace(config, aligned=True).to_json()), None)
        if aligned is not None:
            return None, (f"no patch is for the guarded path, which serves sizes that the tile's do not divide and "
                          f"unaligned addresses; {aligned.name} is for the aligned path")
        return None, (f"no patch is for this configuration; those for {kernel} on {arch}: "
                      + ", ".join(patch.name for patch in known))
    return None, (f"no patch is for this cubin (SHA-256 {this[:16]}...): of this configuration there are "
                  + ", ".join(f"{patch.cubin[:16]}... ({patch.name}, {patch.compiler})" for patch in alike)
                  + "; another compiler or source made it")
