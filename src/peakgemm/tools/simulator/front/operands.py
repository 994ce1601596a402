"""Operands of PTX instructions: registers, literals, addresses, lists of them."""

from __future__ import annotations

import re

from .declarations import Declarations
from .ptx import Imm, Instruction, Kernel, Mem, Operand, Pair, PtxError, Reg, Sym, Variable, Vec
from .scopes import Scopes
from .tokens import float_bits, kind, negated

_SPECIAL = re.compile(r"%(tid|ntid|ctaid|nctaid|laneid|warpid|nwarpid|lanemask_\w+|clock\w*|globaltimer\w*|smid|nsmid|"
                      r"gridid|dynamic_smem_size|total_smem_size|n?cluster\w*|reserved_smem_offset_\w+|envreg\d+|is_explicit_cluster)(\.[xyz])?$")
DEEPEST = 200  # braces and brackets within each other


class Operands(Declarations):
    """The part of the parser for operands; ``scopes``: of the kernel that is read, ``variables``: the module's."""

    def __init__(self, text: str, variables: dict[str, Variable]) -> None:
        super().__init__(text)
        self.scopes = Scopes(Kernel("", []), "")
        self.variables = variables
        self.depth = 0

    def predicate(self) -> str:
        name = self.take("a predicate")
        if not isinstance(found := self.scopes.find(name), Reg):
            self.at -= 1
            raise self.fail("a declared predicate")
        return found.name

    def operand(self) -> Operand:
        text = self.texts[self.at]
        found = self.scopes.find(text)
        result: Operand
        if found is not None and not isinstance(found, Sym):
            self.at += 1
            result = found
        elif text == "{":
            result = Vec(tuple(self.listed("{", "}")))
        elif text == "(":
            result = Vec(tuple(self.listed("(", ")")))
        elif text == "[":
            result = self.memory()
        elif text == "!":
            self.take()
            result = Reg(self.predicate(), True)
        else:
            result = self.scalar()
        if self.texts[self.at] != "|":
            return result
        self.at += 1
        return Pair(result, self.scalar())

    def listed(self, start: str, end: str) -> list[Operand]:
        self.expect(start)
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.fail(f"at most {DEEPEST} braces within each other")
        items = []
        while not self.accept(end):
            items.append(self.operand())
            self.accept(",")
        self.depth -= 1
        return items

    def memory(self) -> Operand:
        self.expect("[")
        base = self.scalar()
        if not isinstance(base, (Reg, Sym, Imm)):
            raise self.fail("an address")
        offset = self.offset() if self.texts[self.at] in ("+", "-") else 0
        index: tuple[Operand, ...] = ()
        if self.accept(","):  # coordinates of a tensor or texture
            index = item.items if isinstance(item := self.operand(), Vec) else (item,)
        self.expect("]")
        return Mem(base, offset, index)

    def offset(self) -> int:
        """``+ 4``, ``- 4``, ``+ -4``, or nothing."""
        offset = 0
        while self.peek() in ("+", "-"):
            sign = -1 if self.take() == "-" else 1
            offset += sign * self.integer()
        return offset

    def scalar(self) -> Operand:
        text = self.take("an operand")
        found = self.scopes.find(text)
        if found is not None:
            return self.place(text, found.name) if isinstance(found, Sym) else found
        if text == "-":
            if kind(self.peek()) == "float":
                return Imm(*negated(*float_bits(self.take())))
            self.at -= 1
            return Imm(self.integer())
        what = kind(text)
        if what == "number":
            self.at -= 1
            return Imm(self.integer())
        if what == "float":
            return Imm(*float_bits(text))
        if what == "name" and not text.startswith("."):
            if text == "_":
                return Reg("_")
            if text == "WARP_SZ":
                return Imm(32)
            if text.startswith("%"):
                if not _SPECIAL.match(text):
                    self.at -= 1
                    raise self.fail("a declared register")
                return Reg(text)
            return self.place(text, text)
        self.at -= 1
        raise self.fail("an operand")

    def place(self, text: str, name: str) -> Sym:
        """A variable, or an element of it (``a[3]``), perhaps with an offset in bytes."""
        offset, indices = 0, []
        while self.peek() == "[":
            self.take()
            indices.append(self.integer())
            self.expect("]")
        if indices:
            variable = self.known_variable(name)
            if variable is None or len(indices) > max(len(variable.shape), 1):
                raise self.fail(f"no index, for {text} is not an array of {len(indices)} dimensions,")
            shape = variable.shape or (1,)
            for index, size in zip((*indices, *[0] * (len(shape) - len(indices))), shape, strict=True):
                offset = offset * max(size, 1) + index
            offset *= variable.element
        return Sym(name, offset + self.offset() if self.texts[self.at] in ("+", "-") else offset)

    def known_variable(self, name: str) -> Variable | None:
        kernel = self.scopes.kernel
        local = next((one for one in reversed(kernel.variables) if one.name == name), None)
        return local or self.variables.get(name)


def arrange_call(ins: Instruction) -> None:
    """``(results), what, (arguments), prototype``, the lists in brackets being there however the call is written."""
    operands = list(ins.operands)
    results = operands.pop(0) if operands and isinstance(operands[0], Vec) else Vec(())
    if not operands or not isinstance(operands[0], (Sym, Reg)):
        ins.refuse(PtxError(f"PTX line {ins.ptx_line}: `{ins.text}` names no function; write call (results), name, "
                            "(arguments)"))
        return
    what = operands.pop(0)
    arguments = operands.pop(0) if operands and isinstance(operands[0], Vec) else Vec(())
    ins.operands = (results, what, arguments, *operands)
