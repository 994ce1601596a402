"""PTX text to `Module`: a recursive-descent parser.

Grammar: PTX ISA, "Syntax" and "Directives". Debug sections are skipped, `.loc` and
`.file` kept: they carry every message and every count back to the CUDA source.

What it does not understand is an error where it is executed, not before: an instruction
becomes one that raises, a kernel's head is an error for whoever asks for the kernel, and
a directive is passed over and named where something is missing.
"""

from __future__ import annotations

from collections.abc import Callable

from .labels import Labels
from .operands import Operands, arrange_call
from .ptx import BYTES, NOT_UNDERSTOOD, Instruction, Kernel, Mem, Module, Operand, Param, PtxError, Reg, Sym
from .scopes import Scopes
from .tokens import integer, kind

_LINKAGE = {".visible", ".extern", ".weak", ".common"}
_BOUNDS = {".maxntid": "max_threads", ".reqntid": "max_threads", ".minnctapersm": "min_blocks",
           ".maxnreg": "max_registers", ".reqnctapercluster": "cluster"}
_SPACES = {".global": "global", ".const": "const", ".shared": "shared", ".local": "local",
           ".shared::cta": "shared"}
_TOP = {*_LINKAGE, *_SPACES, ".entry", ".func", ".file", ".section", ".version", ".target", ".address_size", ".alias",
        ".pragma", ".tex"}
_LINES = {".version", ".target", ".address_size"}
_HEADS = {".noreturn", ".pragma", ".abi_preserve", ".abi_preserve_control", ".explicitcluster",
          ".blocksareclusters", ".maxclusterrank", ".maxnctapersm"}
MOST_REGISTERS = 1 << 24


def parse(text: str, display: Callable[[str], str] = str) -> Module:
    """Parse PTX text; ``display`` turns the compiler's file names into those of messages.

    Raises:
        PtxError: this is no PTX, or it is cut off; the message names the line and the token.
    """
    return _Parser(text.removeprefix("\ufeff"), display).module()


class _Parser(Operands):
    def __init__(self, text: str, display: Callable[[str], str]) -> None:
        self.result = Module({}, {}, {})
        super().__init__(text, self.result.variables)
        self.display = display
        self.location: tuple[str, int] = ("", 0)  # number of a file, line
        self.named = ""  # the kernel or function whose head is read

    def module(self) -> Module:
        if ".version" not in self.texts[:4]:
            raise PtxError("PTX line 1: no .version directive at the start; is this PTX text?")
        while self.at < self.count:
            start, self.named = self.at, ""
            try:
                self.directive(self.take())
            except PtxError as error:
                if self.at >= self.count:
                    raise
                self.pass_over(start, error)
        for kernel in (*self.result.kernels.values(), *self.result.functions.values()):
            for instruction in kernel.instructions:
                number = int(instruction.file or 0)
                instruction.file = self.result.files.get(number, "")
        return self.result

    def directive(self, text: str) -> None:
        if text in _LINES:
            self.rest_of_line()
        elif text == ".file":
            self.file_directive()
        elif text == ".section":
            self.skip_to("}")
        elif text == ".pragma":
            self.skip_to(";")
        elif text == ".alias":
            name = self.name("a function")
            self.expect(",")
            self.result.aliases[name] = self.name("a function")
            self.expect(";")
        elif text in _LINKAGE:
            if self.peek() in _SPACES:
                self.declare(_SPACES[self.take()], text == ".extern")
        elif text in _SPACES:
            self.declare(_SPACES[text], False)
        elif text in (".entry", ".func"):
            self.body(text == ".func")
        elif text != ";" and kind(text) != "loc":
            self.at -= 1
            raise self.fail("a directive")

    def declare(self, space: str, extern: bool) -> None:
        for variable in self.variable(space, extern):
            known = self.result.variables.get(variable.name)
            if not (extern and known is not None and not known.dynamic):
                self.result.variables[variable.name] = variable

    def pass_over(self, start: int, error: PtxError) -> None:
        """Go on behind what ``error`` is about, with the next thing that a module can hold."""
        self.at, depth = start + 1, 0
        while self.at < self.count:
            text = self.texts[self.at]
            if depth <= 0 and text in _TOP:
                break
            self.at += 1
            depth += (text == "{") - (text == "}")
            if depth <= 0 and text in (";", "}"):
                break
        self.result.skipped.append(f"line {self.tokens.line(start)}: `{self.excerpt(start, self.at)[:60]}`")
        if self.named:
            (self.result.unusable if ".func" in self.texts[start:start + 3] else self.result.broken)[self.named] = error

    def file_directive(self) -> None:
        items = self.rest_of_line()
        number = integer(items[0]) if items else None
        if number is None or len(items) < 2 or kind(items[1]) != "string":
            raise self.fail("a file number and name")
        self.result.files[number] = self.display(items[1][1:-1])

    def body(self, function: bool) -> None:
        """A kernel, or a function: its head and, where there is one, its body."""
        line = self.tokens.line(self.at - 1)
        results = self.parameters() if function and self.peek() == "(" else []
        kernel = Kernel(self.name("a kernel name"), [], results=results, function=function, line=line)
        name = self.named = kernel.name
        kernel.params = self.parameters() if self.peek() == "(" else []
        while self.peek() != "{":
            if (word := self.take("a kernel body")) == ";":
                if function:
                    self.result.declared.add(name)
                return
            if word in _BOUNDS:
                product = first = self.integer(1 << 31)
                while self.accept(","):
                    product *= self.integer(1 << 31)
                if _BOUNDS[word] == "cluster" and product != first:
                    raise self.fail("a cluster along x, the only ones that are simulated")
                setattr(kernel, _BOUNDS[word], product)
            elif word.startswith(".") and word not in _HEADS and kind(word) != "loc":
                kernel.skipped.append(f"line {self.tokens.line(self.at - 1)}: `{word}`")
            elif word == "}" or word in _TOP:
                self.at -= 1
                raise self.fail("a kernel body")
        self.take()
        self.location = ("", 0)
        self.scopes, self.labels = Scopes(kernel, f"{name}:" if function else ""), Labels(kernel, f"{name}:" * function)
        if function:
            self.signature(kernel)
        while True:
            start = self.at
            if self.accept("}"):
                self.labels.close()
                if self.scopes.close():
                    break
                continue
            try:
                self.statement(kernel)
            except PtxError as error:
                self.recover(kernel, start, error)
        if function:
            self.results(kernel, None)
            self.append(kernel, "ret", ())
        self.labels.resolve()
        (self.result.functions if function else self.result.kernels)[name] = kernel

    def parameters(self) -> list[Param]:
        """``( ... )``."""
        self.expect("(")
        found = []
        while not self.accept(")"):
            found.append(self.parameter())
            if not self.accept(",") and self.peek() != ")":
                raise self.fail("',' or ')'")
        return found

    def signature(self, function: Kernel) -> None:
        """The names of a function's parameters and results; what is in registers is read where it begins."""
        for param in (*function.results, *function.params):
            if param.register:
                register = self.scopes.register(param.name, param.type)
                assert isinstance(register, Reg)
                param.register = register.name
                param.name = self.scopes.unique(f"{param.name}'")
            else:
                param.name = self.scopes.variable(param.name)
        for param in function.params:
            if param.register:
                self.append(function, f"ld.param.{_plain(param.type)}", (Reg(param.register), Mem(Sym(param.name))))

    def results(self, function: Kernel, guard: Reg | None) -> None:
        """Where a function ends: what it returns in registers."""
        for param in function.results:
            if param.register:
                self.append(function, f"st.param.{_plain(param.type)}", (Mem(Sym(param.name)), Reg(param.register)),
                            guard)

    def append(self, kernel: Kernel, opcode: str, operands: tuple[Operand, ...], guard: Reg | None = None,
               first: int | None = None, error: PtxError | None = None) -> Instruction:
        """Append an instruction whose text begins at the token ``first`` and ends before the one that comes next."""
        text = opcode if first is None else self.excerpt(first, self.at)
        line = self.tokens.line(self.at - 1 if first is None else first)
        ins = Instruction(len(kernel.instructions), opcode, operands, guard, text, line, *self.location, error=error)
        kernel.instructions.append(ins)
        return ins

    def recover(self, kernel: Kernel, start: int, error: PtxError) -> None:
        """Pass over a statement that is not understood: an instruction will raise when it is executed.

        Raises:
            PtxError: there is nothing behind it.
        """
        if self.at >= self.count:
            raise error
        self.depth = 0
        text = self.skip_statement(start)
        if self.at >= self.count:
            raise error
        if self.texts[start].startswith("."):
            kernel.skipped.append(f"line {self.tokens.line(start)}: `{text[:60]}`")
        else:
            self.append(kernel, NOT_UNDERSTOOD, (), None, start, error)

    def statement(self, kernel: Kernel) -> None:
        text = self.take("an instruction")
        if text == "{":
            self.scopes.open()
            self.labels.open()
        elif text == ";":
            pass
        elif kind(text) == "loc":
            words = text.replace(",", " ").split(maxsplit=3)
            self.location = (words[1], int(words[2]))
        elif text == ".file":
            self.file_directive()
        elif text == ".pragma":
            self.skip_to(";")
        elif text == ".reg":
            self.register()
        elif text in _SPACES or text == ".param":
            for variable in self.variable(_SPACES.get(text, "param"), False):
                variable.name = self.scopes.variable(variable.name)
                kernel.variables.append(variable)
        elif self.peek() == ":":
            line = self.tokens.line(self.at - 1)
            self.take()
            if self.accept(".branchtargets"):
                targets = [self.take("a label")]
                while self.accept(","):
                    targets.append(self.take("a label"))
                self.expect(";")
                self.labels.table(text, line, targets)
            elif self.peek() in (".callprototype", ".calltargets"):
                self.skip_to(";")
            else:
                self.labels.place(text, line)
        else:
            self.at -= 1
            self.instruction(kernel)

    def register(self) -> None:
        vector, word = 1, self.take("a register type")[1:]
        if word in ("v2", "v4"):
            vector, word = int(word[1]), self.take("a register type")[1:]
        if word not in BYTES:
            self.at -= 1
            raise self.fail("a register type")
        while True:
            name = self.name("a register name")
            if self.accept("<"):
                count = self.integer(MOST_REGISTERS)
                self.expect(">")
                if vector == 1:
                    self.scopes.range(name, count, word)
                else:
                    for index in range(count):
                        self.scopes.register(f"{name}{index}", word, vector)
            else:
                self.scopes.register(name, word, vector)
            if not self.accept(","):
                break
        self.expect(";")

    def instruction(self, kernel: Kernel) -> None:
        first, guard = self.at, None
        if self.accept("@"):
            negated = self.accept("!")
            guard = Reg(self.predicate(), negated)
        opcode = self.take("an opcode")
        if not opcode[0].isalpha() and opcode[0] != "_":
            self.at -= 1
            raise self.fail("an instruction")
        operands, texts = [], self.texts
        while texts[self.at] != ";":
            operands.append(self.operand())
            if texts[self.at] == ",":
                self.at += 1
            elif texts[self.at] != ";":
                raise self.fail("',' or ';'")
        self.at += 1
        if kernel.function and opcode.split(".")[0] == "ret":
            self.results(kernel, guard)
        ins = self.append(kernel, opcode, tuple(operands), guard, first)
        if ins.base in ("bra", "brx"):
            self.labels.branch(ins)
        elif ins.base == "call":
            arrange_call(ins)


def _plain(element: str) -> str:
    return f"b{8 * BYTES[element]}"
