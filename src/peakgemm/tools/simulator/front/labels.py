"""Labels of one kernel. A block in braces has labels of its own: the same text, inlined twice, declares them twice."""

from __future__ import annotations

from .ptx import Instruction, Kernel, PtxError, Sym

Scope = dict[str, str]


class Labels:
    """Gives each label a name of its own in ``kernel.labels``, and branches the one that they mean.

    A branch may stand before its label, so names are resolved at the end of the kernel.
    """

    def __init__(self, kernel: Kernel, prefix: str = "") -> None:
        self.kernel, self.prefix = kernel, prefix
        self.scopes: list[Scope] = [{}]  # innermost last
        self.branches: list[tuple[Instruction, tuple[Scope, ...]]] = []
        self.tables: list[tuple[str, int, tuple[Scope, ...]]] = []
        self.errors: dict[str, PtxError] = {}

    def open(self) -> None:
        """A block begins."""
        self.scopes.append({})

    def close(self) -> None:
        """A block ends."""
        self.scopes.pop()

    def place(self, name: str, line: int) -> None:
        """``name:`` before the next instruction.

        Raises:
            PtxError: the block has a label of that name already.
        """
        self.kernel.labels[self._declare(name, line)] = len(self.kernel.instructions)

    def table(self, name: str, line: int, targets: list[str]) -> None:
        """``name: .branchtargets targets;``.

        Raises:
            PtxError: the block has a label of that name already.
        """
        known = self._declare(name, line)
        self.kernel.tables[known] = targets
        self.tables.append((known, line, tuple(self.scopes)))

    def branch(self, ins: Instruction) -> None:
        """A branch in the current block."""
        self.branches.append((ins, tuple(self.scopes)))

    def resolve(self) -> None:
        """Replace the names in branches and tables; a branch to a label that no block around it declares gets the
        error that it raises where it is executed."""
        for name, line, scopes in self.tables:
            try:
                self.kernel.tables[name] = [self._find(target, scopes, line, f"table {name}")
                                            for target in self.kernel.tables[name]]
            except PtxError as error:
                self.kernel.tables[name] = []
                self.errors[name] = error
        for ins, scopes in self.branches:
            try:
                self._resolve(ins, scopes)
            except PtxError as error:
                ins.refuse(error)

    def _resolve(self, ins: Instruction, scopes: tuple[Scope, ...]) -> None:
        place = 1 if ins.base == "brx" else 0
        target = ins.operands[place] if place < len(ins.operands) else None
        name = target.name if isinstance(target, Sym) else "?"
        found = self._find(name, scopes, ins.ptx_line, f"`{ins.text}`")
        if found in self.errors:
            raise self.errors[found]
        if (found in self.kernel.tables) != (ins.base == "brx"):
            raise self._missing(ins.ptx_line, f"`{ins.text}`")
        ins.operands = (*ins.operands[:place], Sym(found), *ins.operands[place + 1:])

    def _declare(self, name: str, line: int) -> str:
        if name in self.scopes[-1]:
            raise PtxError(f"PTX line {line}: label {name} is declared twice in one block; rename one, or put its code "
                           "into braces")
        known, number = self.prefix + name, 0
        while known in self.kernel.labels or known in self.kernel.tables:
            number += 1
            known = f"{self.prefix}{name}'{number}"
        self.scopes[-1][name] = known
        return known

    def _find(self, name: str, scopes: tuple[Scope, ...], line: int, what: str) -> str:
        for scope in reversed(scopes):
            if name in scope:
                return scope[name]
        raise self._missing(line, what)

    def _missing(self, line: int, what: str) -> PtxError:
        return PtxError(f"PTX line {line}: {what} names a label that is not in kernel {self.kernel.name}, or is in a "
                        "block that the branch is not in")
