"""PTX text to `Module`: a recursive-descent parser.

Grammar: PTX ISA, "Syntax" and "Directives". Debug sections are skipped, `.loc` and
`.file` kept: they carry every message and every count back to the CUDA source.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from .labels import Labels
from .ptx import BYTES, Imm, Instruction, Kernel, Mem, Module, Operand, Pair, Param, PtxError, Reg, Sym, Variable, Vec
from .tokens import Tokens, float_bits, kind

_SPECIAL = re.compile(r"%(tid|ntid|ctaid|nctaid|laneid|warpid|nwarpid|lanemask_\w+|clock\w*|globaltimer\w*|smid|nsmid|"
                      r"gridid|dynamic_smem_size|total_smem_size|n?cluster\w*|envreg\d+|is_explicit_cluster)(\.[xyz])?$")
_LINKAGE = {".visible", ".extern", ".weak", ".common"}
_BOUNDS = {".maxntid": "max_threads", ".reqntid": "max_threads", ".minnctapersm": "min_blocks",
           ".maxnreg": "max_registers", ".reqnctapercluster": "cluster"}
_SPACES = {".global": "global", ".const": "const", ".shared": "shared", ".local": "local"}


def parse(text: str, display: Callable[[str], str] = str) -> Module:
    """Parse PTX text; ``display`` turns the compiler's file names into those of messages.

    Raises:
        PtxError: malformed PTX; the message names the line and the token.
    """
    return _Parser(text, display).module()


class _Parser:
    def __init__(self, text: str, display: Callable[[str], str]) -> None:
        self.display = display
        self.tokens = Tokens(text)
        self.texts, self.count = self.tokens.texts, self.tokens.count
        self.text = text
        self.at = 0
        self.result = Module({}, {}, {})
        self.scopes: list[dict[str, str]] = []  # of registers
        self.known: dict[str, Reg] = {}  # one object for each, however often it is named
        self.location: tuple[str, int] = ("", 0)  # number of a file, line
        self.unique = 0

    def fail(self, expected: str) -> PtxError:
        if self.at >= self.count:
            last = self.tokens.line(-1) if self.count else 1
            return PtxError(f"PTX line {last}: the text ends where {expected} is expected; the file is cut off")
        line, text = self.tokens.line(self.at), self.texts[self.at]
        return PtxError(f"PTX line {line}: {text!r} where {expected} is expected; mend the PTX text")

    def peek(self) -> str:
        return self.texts[self.at]

    def take(self, expected: str = "more text") -> str:
        if self.at >= self.count:
            raise self.fail(expected)
        self.at += 1
        return self.texts[self.at - 1]

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.fail(repr(text))

    def accept(self, text: str) -> bool:
        if self.texts[self.at] == text:
            self.at += 1
            return True
        return False

    def rest_of_line(self) -> list[str]:
        line, start = self.tokens.line(self.at - 1), self.at
        while self.at < self.count and self.tokens.line(self.at) == line:
            self.at += 1
        return self.texts[start:self.at]

    def integer(self) -> int:
        negative = self.accept("-")
        text = self.take("an integer")
        if kind(text) != "number":
            self.at -= 1
            raise self.fail("an integer")
        value = int(text.rstrip("U"), 0)
        return -value if negative else value

    def skip_to(self, end: str) -> None:
        depth = 0
        while True:
            text = self.take(repr(end))
            depth += (text == "{") - (text == "}")
            if text == end and depth <= 0:
                return

    def module(self) -> Module:
        if ".version" not in self.texts[:4]:
            raise PtxError("PTX line 1: no .version directive at the start; is this PTX text?")
        while self.at < self.count:
            text = self.take()
            if text in (".version", ".target", ".address_size"):
                self.rest_of_line()
            elif text == ".file":
                self.file_directive()
            elif text == ".section":
                self.skip_to("}")
            elif text in (".pragma", ".alias"):
                self.skip_to(";")
            elif text in _LINKAGE:
                if self.peek() in _SPACES:
                    self.variable(_SPACES[self.take()], self.result.variables, text == ".extern")
            elif text in _SPACES:
                self.variable(_SPACES[text], self.result.variables, False)
            elif text == ".entry":
                self.entry()
            elif text == ".func":
                self.function()
            elif text != ";" and kind(text) != "loc":
                self.at -= 1
                raise self.fail("a directive")
        for kernel in self.result.kernels.values():
            for instruction in kernel.instructions:
                number = int(instruction.file or 0)
                instruction.file = self.result.files.get(number, "")
        return self.result

    def file_directive(self) -> None:
        items = self.rest_of_line()
        if len(items) < 2 or kind(items[1]) != "string":
            raise self.fail("a file number and name")
        self.result.files[int(items[0])] = self.display(items[1][1:-1])

    def function(self) -> None:
        while self.peek() not in ("{", ";"):
            self.take("a function body")
        if not self.accept(";"):
            self.skip_to("}")

    def variable(self, space: str, into: dict[str, Variable], extern: bool) -> None:
        align, element = 1, "b8"
        while self.peek().startswith("."):
            word = self.take()[1:]
            if word == "align":
                align = self.integer()
            elif word in BYTES:
                element = word
            elif word not in ("attribute", "v2", "v4"):
                self.at -= 1
                raise self.fail("a variable's type")
        name = self.take("a variable's name")
        count, dynamic = 1, False
        while self.accept("["):
            if self.accept("]"):
                dynamic = True
            else:
                count *= self.integer()
                self.expect("]")
        data = self.initialiser(BYTES[element]) if self.accept("=") else b""
        self.expect(";")
        size = 0 if dynamic else count * BYTES[element]
        into[name] = Variable(name, space, size, max(align, BYTES[element]), data.ljust(size, b"\0"), dynamic or extern)

    def initialiser(self, size: int) -> bytes:
        out = bytearray()
        while self.peek() != ";":
            text = self.take("an initialiser")
            if text in "{},-":
                continue
            if kind(text) == "float":
                out += float_bits(text)[0].to_bytes(size, "little")
            elif kind(text) == "number":
                value = int(text.rstrip("U"), 0)
                if self.texts[self.at - 2] == "-":
                    value = -value
                out += (value & (1 << 8 * size) - 1).to_bytes(size, "little")
            else:
                self.at -= 1
                raise self.fail("a number")
        return bytes(out)

    def entry(self) -> None:
        kernel = Kernel(self.take("a kernel name"), [])
        if self.accept("("):
            while not self.accept(")"):
                kernel.params.append(self.parameter())
                self.accept(",")
        while self.peek() != "{":
            if (word := self.take("a kernel body")) == ";":
                return
            if word in _BOUNDS:
                product = first = self.integer()
                while self.accept(","):
                    product *= self.integer()
                if _BOUNDS[word] == "cluster" and product != first:
                    raise self.fail("a cluster along x, the only ones that are simulated")
                setattr(kernel, _BOUNDS[word], product)
        self.take()
        self.location = ("", 0)
        self.scopes, self.labels = [{}], Labels(kernel)
        local: dict[str, Variable] = {}
        while self.scopes:
            self.statement(kernel, local)
        kernel.variables = list(local.values())
        self.labels.resolve()
        self.result.kernels[kernel.name] = kernel

    def parameter(self) -> Param:
        self.expect(".param")
        element, align = "", 0
        while self.peek().startswith("."):
            word = self.take()[1:]
            if word == "align":
                align = self.integer()
            elif word in BYTES:
                element = word
        if not element:
            raise self.fail("a parameter type")
        name, count = self.take("a parameter name"), 1
        if self.accept("["):
            count = self.integer()
            self.expect("]")
        size = BYTES[element] * count
        # `.ptr .align n` speaks of the memory pointed to, not of the parameter's place.
        return Param(name, element, size, max(align, BYTES[element]) if element == "b8" else BYTES[element])

    def statement(self, kernel: Kernel, local: dict[str, Variable]) -> None:
        text = self.take("an instruction")
        if text == "{":
            self.scopes.append({})
            self.labels.open()
        elif text == "}":
            self.scopes.pop()
            self.labels.close()
        elif text == ";":
            pass
        elif kind(text) == "loc":
            number, row = text.split(maxsplit=3)[1:3]
            self.location = (number, int(row))
        elif text == ".file":
            self.file_directive()
        elif text == ".pragma":
            self.skip_to(";")
        elif text == ".reg":
            self.register(kernel)
        elif text in _SPACES:
            self.variable(_SPACES[text], local, False)
        elif text == ".param":  # of a call, which is refused where it is reached
            self.skip_to(";")
        elif self.peek() == ":":
            line = self.tokens.line(self.at - 1)
            self.take()
            if self.accept(".branchtargets"):
                targets = [self.take("a label")]
                while self.accept(","):
                    targets.append(self.take("a label"))
                self.labels.table(text, line, targets)
            elif self.peek() in (".callprototype", ".calltargets"):
                self.skip_to(";")
            else:
                self.labels.place(text, line)
        else:
            self.at -= 1
            self.instruction(kernel)

    def register(self, kernel: Kernel) -> None:
        element = self.take("a register type")[1:]
        if element not in BYTES:
            self.at -= 1
            raise self.fail("a register type")
        while True:
            name = self.take("a register name")
            if self.accept("<"):
                names = [f"{name}{index}" for index in range(self.integer())]
                self.expect(">")
            else:
                names = [name]
            for one in names:
                known = one
                if known in kernel.registers:
                    self.unique += 1
                    known = f"{one}'{self.unique}"
                self.scopes[-1][one] = known
                kernel.registers[known] = element
            if not self.accept(","):
                break
        self.expect(";")

    def instruction(self, kernel: Kernel) -> None:
        first, guard = self.at, None
        if self.accept("@"):
            negated = self.accept("!")
            name = self.resolve(self.take("a predicate"))
            if name is None:
                self.at -= 1
                raise self.fail("a declared predicate")
            guard = Reg(name, negated)
        opcode = self.take("an opcode")
        if not opcode[0].isalpha() and opcode[0] != "_":
            self.at -= 1
            raise self.fail("an instruction")
        operands = []
        while self.peek() != ";":
            operands.append(self.operand())
            if self.peek() != ";" and not self.accept(","):
                raise self.fail("',' or ';'")
        self.at += 1
        text = self.text[self.tokens.starts[first]:self.tokens.starts[self.at - 1]]
        if "//" in text:
            text = " ".join(line.split("//")[0] for line in text.split("\n"))
        ins = Instruction(len(kernel.instructions), opcode, tuple(operands), guard, " ".join(text.split()),
                          self.tokens.line(first), *self.location)
        kernel.instructions.append(ins)
        if ins.base in ("bra", "brx"):
            self.labels.branch(ins)

    def resolve(self, name: str) -> str | None:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return None

    def register_of(self, known: str) -> Reg:
        found = self.known.get(known)
        if found is None:
            found = self.known[known] = Reg(known)
        return found

    def operand(self) -> Operand:
        text = self.peek()
        result: Operand
        if (known := self.resolve(text)) is not None:
            self.at += 1
            result = self.register_of(known)
        elif text == "{":
            result = Vec(tuple(self.listed("{", "}")))
        elif text == "(":
            result = Vec(tuple(self.listed("(", ")")))
        elif text == "[":
            result = self.memory()
        elif text == "!":
            self.take()
            name = self.resolve(self.take("a predicate"))
            if name is None:
                self.at -= 1
                raise self.fail("a declared predicate")
            result = Reg(name, True)
        else:
            result = self.scalar()
        return Pair(result, self.scalar()) if self.accept("|") else result

    def listed(self, start: str, end: str) -> list[Operand]:
        self.expect(start)
        items = []
        while not self.accept(end):
            items.append(self.operand())
            self.accept(",")
        return items

    def memory(self) -> Operand:
        self.expect("[")
        base = self.scalar()
        if not isinstance(base, (Reg, Sym, Imm)):
            raise self.fail("an address")
        offset = 0
        if self.accept("+") or self.peek() == "-":
            offset = self.integer()
        index: tuple[Operand, ...] = ()
        if self.accept(","):  # coordinates of a tensor or texture
            index = item.items if isinstance(item := self.operand(), Vec) else (item,)
        self.expect("]")
        return Mem(base, offset, index)

    def scalar(self) -> Operand:
        text = self.take("an operand")
        if text == "-":
            if kind(self.peek()) == "float":
                raise self.fail("an integer")
            self.at -= 1
            return Imm(self.integer())
        what = kind(text)
        if what == "number":
            return Imm(int(text.rstrip("U"), 0))
        if what == "float":
            return Imm(*float_bits(text))
        if what == "name":
            known = self.resolve(text)
            if known is not None or text == "_":
                return self.register_of(known or "_")
            if text == "WARP_SZ":
                return Imm(32)
            if text.startswith(("%", "WARP_SZ")):
                if not _SPECIAL.match(text):
                    self.at -= 1
                    raise self.fail("a declared register")
                return Reg(text)
            if self.peek() == "+" and kind(self.texts[self.at + 1]) == "number":
                self.take()
                return Sym(text, self.integer())
            return Sym(text)
        self.at -= 1
        raise self.fail("an operand")
