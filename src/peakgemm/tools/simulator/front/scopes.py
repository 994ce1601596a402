"""What names mean in one kernel or function: registers, vectors of them, variables. A block in braces has its own."""

from __future__ import annotations

from .ptx import Kernel, Operand, Reg, Sym, Vec

SELECTORS = ("xr", "yg", "zb", "wa")


class Scopes:
    """Gives each register and variable of ``kernel`` a name of its own.

    Registers of a range (``%r<5000>``) are declared as they are first named: most of them never are.
    """

    def __init__(self, kernel: Kernel, prefix: str) -> None:
        self.kernel, self.prefix = kernel, prefix
        self.names: list[dict[str, Operand]] = [{}]  # innermost last
        self.ranges: list[dict[str, tuple[int, str]]] = [{}]
        self.taken: set[str] = set()

    def open(self) -> None:
        """A block begins."""
        self.names.append({})
        self.ranges.append({})

    def close(self) -> bool:
        """A block ends; whether it was the outermost one."""
        self.names.pop()
        self.ranges.pop()
        return not self.names

    def unique(self, name: str) -> str:
        """``name``, or one like it that is not taken."""
        known, number = self.prefix + name, 0
        while known in self.taken:
            number += 1
            known = f"{self.prefix}{name}'{number}"
        self.taken.add(known)
        return known

    def register(self, name: str, element: str, vector: int = 1) -> Operand:
        """Declare a register, or a vector of them."""
        names = self.names[-1]
        if vector > 1:
            parts = []
            for selector in SELECTORS[:vector]:
                part = self.register(f"{name}.{selector[0]}", element)
                names[f"{name}.{selector[1]}"] = part
                parts.append(part)
            names[name] = Vec(tuple(parts))
            return names[name]
        known = self.unique(name)
        self.kernel.registers[known] = element
        names[name] = Reg(known)
        return names[name]

    def range(self, prefix: str, count: int, element: str) -> None:
        """Declare ``prefix<count>``."""
        self.ranges[-1][prefix] = (count, element)
        if self.names[-1]:
            for name in [name for name in self.names[-1] if name.startswith(prefix) and name[len(prefix):].isdigit()]:
                del self.names[-1][name]

    def variable(self, name: str) -> str:
        """Declare a variable; the name that it is known by."""
        known = self.unique(name)
        self.names[-1][name] = Sym(known)
        return known

    def find(self, name: str) -> Operand | None:
        """What a name means; None: it is not declared here."""
        found = self.names[-1].get(name)
        if found is not None:
            return found
        stem = name.rstrip("0123456789")
        number = name[len(stem):]
        numbered = number != "" and (number[0] != "0" or number == "0") and len(number) < 10
        for depth in range(len(self.names) - 1, -1, -1):
            found = self.names[depth].get(name)
            if found is not None:
                return found
            if numbered:
                of = self.ranges[depth].get(stem)
                if of is not None and int(number) < of[0]:
                    known = self.unique(name)
                    self.kernel.registers[known] = of[1]
                    self.names[depth][name] = one = Reg(known)
                    return one
        return None
