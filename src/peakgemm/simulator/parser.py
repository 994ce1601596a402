"""PTX text to `Module`: a tokenizer with line numbers and a recursive-descent parser.

Grammar: PTX ISA, "Syntax" and "Directives". Debug sections are skipped, `.loc` and
`.file` kept: they carry every message and every count back to the CUDA source.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from .labels import Labels
from .ptx import BYTES, Imm, Instruction, Kernel, Mem, Module, Operand, Pair, Param, PtxError, Reg, Sym, Variable, Vec
from .tokens import Token, float_bits, tokens

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
        self.tokens = tokens(text)
        self.text = text
        self.at = 0
        self.result = Module({}, {}, {})
        self.scopes: list[dict[str, str]] = []  # of registers
        self.known: dict[str, Reg] = {}  # one object for each, however often it is named
        self.location: tuple[str, int] = ("", 0)  # number of a file, line
        self.unique = 0

    def fail(self, expected: str) -> PtxError:
        if self.at >= len(self.tokens):
            last = self.tokens[-1].line if self.tokens else 1
            return PtxError(f"PTX line {last}: the text ends where {expected} is expected; the file is cut off")
        token = self.tokens[self.at]
        return PtxError(f"PTX line {token.line}: {token.text!r} where {expected} is expected; mend the PTX text")

    def peek(self, ahead: int = 0) -> str:
        index = self.at + ahead
        return self.tokens[index].text if index < len(self.tokens) else ""

    def take(self, expected: str = "more text") -> Token:
        if self.at >= len(self.tokens):
            raise self.fail(expected)
        self.at += 1
        return self.tokens[self.at - 1]

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.fail(repr(text))

    def accept(self, text: str) -> bool:
        if self.at < len(self.tokens) and self.tokens[self.at].text == text:
            self.at += 1
            return True
        return False

    def rest_of_line(self) -> list[Token]:
        line, start = self.tokens[self.at - 1].line, self.at
        while self.at < len(self.tokens) and self.tokens[self.at].line == line:
            self.at += 1
        return self.tokens[start:self.at]

    def integer(self) -> int:
        negative = self.accept("-")
        token = self.take("an integer")
        if token.kind != "number":
            self.at -= 1
            raise self.fail("an integer")
        value = int(token.text.rstrip("U"), 0)
        return -value if negative else value

    def skip_to(self, end: str) -> None:
        depth = 0
        while True:
            text = self.take(repr(end)).text
            depth += (text == "{") - (text == "}")
            if text == end and depth <= 0:
                return

    def module(self) -> Module:
        if not self.tokens or ".version" not in {token.text for token in self.tokens[:4]}:
            raise PtxError("PTX line 1: no .version directive at the start; is this PTX text?")
        while self.at < len(self.tokens):
            token = self.take()
            if token.text in (".version", ".target", ".address_size"):
                self.rest_of_line()
            elif token.text == ".file":
                self.file_directive()
            elif token.text in (".section",):
                self.skip_to("}")
            elif token.text in (".pragma", ".alias"):
                self.skip_to(";")
            elif token.text in _LINKAGE:
                if self.peek() in _SPACES:
                    self.variable(_SPACES[self.take().text], self.result.variables, token.text == ".extern")
            elif token.text in _SPACES:
                self.variable(_SPACES[token.text], self.result.variables, False)
            elif token.text == ".entry":
                self.entry()
            elif token.text == ".func":
                self.function()
            elif token.kind != "loc" and token.text != ";":
                self.at -= 1
                raise self.fail("a directive")
        for kernel in self.result.kernels.values():
            for instruction in kernel.instructions:
                number = int(instruction.file or 0)
                instruction.file = self.result.files.get(number, "")
        return self.result

    def file_directive(self) -> None:
        items = self.rest_of_line()
        if len(items) < 2 or items[1].kind != "string":
            raise self.fail("a file number and name")
        self.result.files[int(items[0].text)] = self.display(items[1].text[1:-1])

    def function(self) -> None:
        while self.peek() not in ("{", ";"):
            self.take("a function body")
        if not self.accept(";"):
            self.skip_to("}")

    def variable(self, space: str, into: dict[str, Variable], extern: bool) -> None:
        align, kind = 1, "b8"
        while self.peek().startswith("."):
            word = self.take().text[1:]
            if word == "align":
                align = self.integer()
            elif word in BYTES:
                kind = word
            elif word not in ("attribute", "v2", "v4"):
                self.at -= 1
                raise self.fail("a variable's type")
        name = self.take("a variable's name").text
        count, dynamic = 1, False
        while self.accept("["):
            if self.accept("]"):
                dynamic = True
            else:
                count *= self.integer()
                self.expect("]")
        data = self.initialiser(kind) if self.accept("=") else b""
        self.expect(";")
        size = 0 if dynamic else count * BYTES[kind]
        into[name] = Variable(name, space, size, max(align, BYTES[kind]), data.ljust(size, b"\0"), dynamic or extern)

    def initialiser(self, kind: str) -> bytes:
        out = bytearray()
        while self.peek() != ";":
            token = self.take("an initialiser")
            if token.text in "{},-":
                continue
            if token.kind == "float":
                out += float_bits(token.text)[0].to_bytes(BYTES[kind], "little")
            elif token.kind == "number":
                value = int(token.text.rstrip("U"), 0)
                if self.tokens[self.at - 2].text == "-":
                    value = -value
                out += (value & (1 << 8 * BYTES[kind]) - 1).to_bytes(BYTES[kind], "little")
            else:
                self.at -= 1
                raise self.fail("a number")
        return bytes(out)

    def entry(self) -> None:
        kernel = Kernel(self.take("a kernel name").text, [])
        if self.accept("("):
            while not self.accept(")"):
                kernel.params.append(self.parameter())
                self.accept(",")
        while self.peek() != "{":
            if (word := self.take("a kernel body").text) == ";":
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
        kind, align = "", 0
        while self.peek().startswith("."):
            word = self.take().text[1:]
            if word == "align":
                align = self.integer()
            elif word in BYTES:
                kind = word
        if not kind:
            raise self.fail("a parameter type")
        name, count = self.take("a parameter name").text, 1
        if self.accept("["):
            count = self.integer()
            self.expect("]")
        size = BYTES[kind] * count
        # `.ptr .align n` speaks of the memory pointed to, not of the parameter's place.
        return Param(name, kind, size, max(align, BYTES[kind]) if kind == "b8" else BYTES[kind])

    def statement(self, kernel: Kernel, local: dict[str, Variable]) -> None:
        token = self.take("an instruction")
        text = token.text
        if text == "{":
            self.scopes.append({})
            self.labels.open()
        elif text == "}":
            self.scopes.pop()
            self.labels.close()
        elif text == ";":
            pass
        elif token.kind == "loc":
            file, line = text.split(maxsplit=3)[1:3]
            self.location = (file, int(line))
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
            self.take()
            if self.accept(".branchtargets"):
                targets = [self.take("a label").text]
                while self.accept(","):
                    targets.append(self.take("a label").text)
                self.labels.table(text, token.line, targets)
            elif self.peek() in (".callprototype", ".calltargets"):
                self.skip_to(";")
            else:
                self.labels.place(text, token.line)
        else:
            self.at -= 1
            self.instruction(kernel)

    def register(self, kernel: Kernel) -> None:
        kind = self.take("a register type").text[1:]
        if kind not in BYTES:
            self.at -= 1
            raise self.fail("a register type")
        while True:
            name = self.take("a register name").text
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
                kernel.registers[known] = kind
            if not self.accept(","):
                break
        self.expect(";")

    def instruction(self, kernel: Kernel) -> None:
        first = self.tokens[self.at]
        guard = None
        if self.accept("@"):
            negated = self.accept("!")
            name = self.resolve(self.take("a predicate").text)
            if name is None:
                self.at -= 1
                raise self.fail("a declared predicate")
            guard = Reg(name, negated)
        token = self.take("an opcode")
        if token.kind != "name" or token.text[0] in "%.$":
            self.at -= 1
            raise self.fail("an instruction")
        operands = []
        while self.peek() != ";":
            operands.append(self.operand())
            if self.peek() != ";" and not self.accept(","):
                raise self.fail("',' or ';'")
        self.at += 1
        text = self.text[first.start:self.tokens[self.at - 1].start]
        if "//" in text:
            text = " ".join(line.split("//")[0] for line in text.split("\n"))
        ins = Instruction(len(kernel.instructions), token.text, tuple(operands), guard, " ".join(text.split()),
                          first.line, *self.location)
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
            name = self.resolve(self.take("a predicate").text)
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
        token = self.take("an operand")
        if token.text == "-":
            if self.tokens[self.at].kind == "float":
                raise self.fail("an integer")
            self.at -= 1
            return Imm(self.integer())
        if token.kind == "number":
            return Imm(int(token.text.rstrip("U"), 0))
        if token.kind == "float":
            return Imm(*float_bits(token.text))
        if token.kind == "name":
            known = self.resolve(token.text)
            if known is not None or token.text == "_":
                return self.register_of(known or "_")
            if token.text.startswith("%") or token.text.startswith("WARP_SZ"):
                if token.text == "WARP_SZ":
                    return Imm(32)
                if not _SPECIAL.match(token.text):
                    self.at -= 1
                    raise self.fail("a declared register")
                return Reg(token.text)
            if self.peek() == "+" and self.tokens[self.at + 1].kind == "number":
                self.take()
                return Sym(token.text, self.integer())
            return Sym(token.text)
        self.at -= 1
        raise self.fail("an operand")
