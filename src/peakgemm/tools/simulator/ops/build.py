"""From instructions to steps: one Python closure per instruction, working on whole rows of lanes.

A step takes the `Group` it runs for. Operands become getters, results setters; the families
of instructions register their builders in `BUILDERS`. Runs of ``fma.rn.f32`` are fused.
GPU arithmetic gives one NaN, 0x7fffffff, the processor propagates payloads; arithmetic does
not see the difference, so results are made canonical only where something else looks at
their bits, or where they leave the block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checks.accumulators import watch, watch_guarded
from ..core.floats import canonical
from ..core.lanes import DTYPES, VIEW_OF, Group, elements, word
from ..core.special_registers import special
from ..front.program import FRAME, Block, is_barrier
from ..front.ptx import BYTES, TYPES, Frame, Imm, Instruction, Operand, PtxError, Reg, Sym, UnknownInstruction
from . import fma

if TYPE_CHECKING:
    from ..machine import Machine

Step = Callable[[Group], None]
Getter = Callable[[Group], Any]
Setter = Callable[[Group, Any], None]
Builder = Callable[["Build", Instruction], Step]
BUILDERS: dict[str, Builder] = {}
BAD_OPERANDS = (IndexError, KeyError, ValueError, AttributeError, AssertionError, StopIteration, TypeError,
                OverflowError)  # what a builder raises that got something else than it expected
WIDTH = {"p": 1, "h": 2, "r": 4, "d": 8}
SIGNED = {"h": "s16", "r": "s32", "d": "s64"}
UNSIGNED = {"h": "u16", "r": "u32", "d": "u64"}
FLOAT32 = {"add", "sub", "mul", "fma", "mad", "div", "rcp", "sqrt", "rsqrt", "min", "max", "ex2", "lg2", "sin", "cos",
           "tanh"}  # fmt: skip
_ROUNDING = "rn rz rm rp ftz sat"
# The modifiers, types apart, that the arithmetic here heeds: an instruction with another one is refused.
MODIFIERS = {name: frozenset(words.split()) for names, words in (
    ("add sub", f"{_ROUNDING} cc"), ("mul", f"{_ROUNDING} lo hi wide"), ("fma", f"{_ROUNDING} relu"),
    ("mad", f"{_ROUNDING} lo hi wide cc"), ("addc subc", "cc"), ("madc", "lo hi cc"), ("mul24 mad24", "lo hi"),
    ("div rcp sqrt", f"{_ROUNDING} approx full"), ("rsqrt ex2 lg2 sin cos tanh", "approx ftz"),
    ("min max", "ftz NaN xorsign abs relu"), ("abs neg slct", "ftz"), ("bfind", "shiftamt"),
    ("cvt", f"{_ROUNDING} rni rzi rmi rpi rna relu satfinite pack u2 s2 u4 s4"), ("vote", "sync all any uni ballot"),
    ("rem sad and or xor not cnot shl shr selp popc clz brev bfe bfi copysign fns dp4a activemask", ""),
    ("shfl", "sync up down bfly idx"), ("match", "sync any all"), ("elect", "sync"), ("bmsk szext", "wrap clamp"),
    ("redux", "sync add min max and or xor abs NaN"), ("vadd2 vadd4 vsub2 vsub4 vmin2 vmin4 vmax2 vmax4", "sat add"),
    ("vabsdiff2 vabsdiff4", "sat add")) for name in names.split()}


def builder(*names: str) -> Callable[[Builder], Builder]:
    """Register a builder for opcodes."""

    def register(function: Builder) -> Builder:
        for name in names:
            BUILDERS[name] = function
        return function

    return register


def is_float32(ins: Instruction) -> bool:
    """Whether the instruction is float32 arithmetic, whose NaN result is the canonical one."""
    return ins.base in FLOAT32 and ins.types[-1:] == ("f32",)


class Build:
    """Builds the steps of a kernel for one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.program = machine.program

    def block(self, block: Block) -> list[Step]:
        """The steps of a block, its closing branch or barrier excepted."""
        code = self.program.kernel.instructions[block.start:block.end]
        steps: list[Step] = watch(self, code) if code and code[0].base != "wgmma" else []
        dirty: set[str] = set()
        run: list[tuple[int, fma.Source, fma.Source, fma.Source]] = []

        def close_run() -> None:
            if run:
                steps.append(fma.compile_run(run, self.machine.scratch))
                run.clear()

        for ins in code:
            uses, defines = self.program.flow[ins.index]
            looks = dirty.intersection(uses)
            arithmetic = is_float32(ins)
            if looks and not (arithmetic or (ins.base in ("setp", "set", "cvt") and ins.types[-1:] == ("f32",))):
                close_run()
                steps.append(self.canonical(looks))
                dirty -= looks
            if arithmetic:
                dirty.update(defines)
            else:
                dirty.difference_update(defines)
            if ins.opcode == "fma.rn.f32" and ins.guard is None and len(ins.operands) == 4:
                try:
                    d, x, y, z = ins.operands
                    run.append((self.slot(ins, d), self.fma_source(ins, x), self.fma_source(ins, y),
                                self.fma_source(ins, z)))
                except UnknownInstruction as error:
                    close_run()
                    steps.append(self.refusal(ins, error))
                continue
            close_run()
            if ins.base in CONTROL or is_barrier(ins):
                continue
            if ins.guard is not None:
                steps += watch_guarded(self, ins)
            steps.append(self.instruction(ins))
            if ins.base == "wgmma":  # the first of its block
                steps += watch(self, code[1:])
        close_run()
        rest = dirty & block.live_out
        if rest:
            steps.append(self.canonical(rest))
        return steps

    def instruction(self, ins: Instruction) -> Step:
        """The step of one instruction; for one that is not implemented, a step that says so when it is reached."""
        if ins.error is not None:
            return self.refusal(ins, ins.error)
        try:
            if ins.base not in BUILDERS:
                raise ins.unknown()
            for part in ins.parts[1:]:
                if part not in TYPES and part not in MODIFIERS.get(ins.base, part):
                    raise ins.unknown(f"its .{part} is not simulated")
            return BUILDERS[ins.base](self, ins)
        except UnknownInstruction as error:
            return self.refusal(ins, error)
        except BAD_OPERANDS as error:
            return self.refusal(ins, ins.unknown(f"its operands or modifiers are not understood ({error})"))

    def refusal(self, ins: Instruction, error: UnknownInstruction | PtxError) -> Step:
        """A step that raises: an assertion that never fails does not keep a kernel from being simulated."""
        guard = self.guard(ins)

        def step(group: Group) -> None:
            if guard is None or np.any(guard(group)):
                raise error

        return step

    def canonical(self, names: set[str]) -> Step:
        """Make NaNs of float32 results the canonical one."""
        slots = sorted(self.program.slot[name][1] for name in names)
        largest = np.maximum.reduce

        def step(group: Group) -> None:
            rows = group.rows["f32"]
            for slot in slots:
                top = largest(rows[slot])
                if top != top:
                    canonical(rows[slot])

        return step

    def slot(self, ins: Instruction, operand: Operand) -> int:
        """The slot of a register operand."""
        if not isinstance(operand, Reg) or operand.name not in self.program.slot:
            raise ins.unknown(f"operand {operand} is not a register")
        return self.program.slot[operand.name][1]

    def fma_source(self, ins: Instruction, operand: Operand) -> fma.Source:
        """A slot, or a float32 constant."""
        if isinstance(operand, Imm):
            constant: np.float32 = self.constant(ins, operand, "f32")
            return constant
        return self.slot(ins, operand)

    def constant(self, ins: Instruction, operand: Imm, kind: str) -> Any:
        """A literal as a NumPy scalar of type ``kind``."""
        dtype = DTYPES[kind]
        if operand.kind == "int":
            if kind in ("f16", "f32", "f64"):
                raise ins.unknown(f"integer literal {operand.value} where .{kind} is expected")
            if kind == "pred":
                return np.bool_(operand.value != 0)
            unsigned = np.dtype(f"u{BYTES[kind]}").type
            return unsigned(operand.value & ((1 << 8 * BYTES[kind]) - 1)).view(dtype)
        size = 4 if operand.kind == "f32" else 8
        bits = np.dtype(f"u{size}").type(operand.value)
        if BYTES[kind] == size:
            return bits.view(dtype)
        return dtype(bits.view(np.float32 if size == 4 else np.float64))

    def src(self, ins: Instruction, operand: Operand, kind: str) -> Getter:
        """A getter of an operand as type ``kind``: an array of all lanes, or a scalar."""
        if isinstance(operand, Imm):
            value = self.constant(ins, operand, kind)
            return lambda group: value
        if isinstance(operand, Sym):
            place = self.machine.address_of(ins, operand.name) + operand.offset
            address = np.uint64(place & 0xFFFFFFFFFFFFFFFF).astype(DTYPES[kind])
            return lambda group: address
        if isinstance(operand, Frame):
            dtype, row = DTYPES[kind], self.program.slot[FRAME][1]
            move = np.uint32(operand.offset & 0xFFFFFFFF)
            return lambda group: (group.rows["u32"][row] + move).astype(dtype)
        if not isinstance(operand, Reg):
            raise ins.unknown(f"operand {operand} is not a value")
        if operand.name not in self.program.slot:
            return special(self.machine, ins, operand.name, DTYPES[kind])
        cls, slot = self.program.slot[operand.name]
        if (cls == "p") != (kind == "pred"):
            raise ins.unknown(f"{operand.name} is {'a' if cls == 'p' else 'no'} predicate, .{kind} is wanted")
        if cls == "p":
            if operand.negated:
                return lambda group: ~group.rows["pred"][slot]
            return lambda group: group.rows["pred"][slot]
        if BYTES[kind] == WIDTH[cls]:
            view = VIEW_OF.get(kind, kind)
            return lambda group: group.rows[view][slot]
        if BYTES[kind] < WIDTH[cls]:
            view, dtype = UNSIGNED[cls], DTYPES[kind]
            unsigned = np.dtype(f"u{BYTES[kind]}")
            return lambda group: group.rows[view][slot].astype(unsigned).view(dtype)
        raise ins.unknown(f"register {operand.name} is narrower than .{kind}")

    def place(self, ins: Instruction, operand: Operand, kind: str) -> tuple[str, int] | None:
        """The view and slot of a result of type ``kind``; None where it is thrown away (``_``)."""
        if isinstance(operand, Reg) and operand.name == "_":
            return None
        if not isinstance(operand, Reg) or operand.name not in self.program.slot:
            raise ins.unknown(f"result {operand} is not a register")
        cls, slot = self.program.slot[operand.name]
        if (cls == "p") != (kind == "pred"):
            raise ins.unknown(f"{operand.name} is {'a' if cls == 'p' else 'no'} predicate, the result is .{kind}")
        if cls == "p":
            return "pred", slot
        if BYTES[kind] == WIDTH[cls]:
            return VIEW_OF.get(kind, kind), slot
        if BYTES[kind] < WIDTH[cls]:
            return (SIGNED if kind.startswith("s") else UNSIGNED)[cls], slot
        raise ins.unknown(f"result register {operand.name} is narrower than .{kind}")

    def dst(self, ins: Instruction, operand: Operand, kind: str) -> Setter:
        """A setter of a result of type ``kind``, under the instruction's guard."""
        place, copy, guard = self.place(ins, operand, kind), np.copyto, self.guard(ins)
        if place is None:
            return lambda group, value: None
        view, slot = place
        if guard is None:
            return lambda group, value: copy(group.rows[view][slot], value, casting="unsafe")
        return lambda group, value: copy(group.rows[view][slot], value, casting="unsafe", where=guard(group))

    def results(self, ins: Instruction, *given: tuple[Operand, str]) -> Callable[..., None]:
        """A setter of several results, operands with their types: a result may be a source or the guard of the
        instruction, so that values and guard are read before anything is written."""
        places, guard = [self.place(ins, operand, kind) for operand, kind in given], self.guard(ins)

        def put(group: Group, *values: Any) -> None:
            where = True if guard is None else np.array(guard(group))
            for place, value in zip(places, [np.array(value) for value in values], strict=True):
                if place is not None:
                    np.copyto(group.rows[place[0]][place[1]], value, casting="unsafe", where=where)

        return put

    def guard(self, ins: Instruction) -> Getter | None:
        """A getter of the instruction's guard, None where it has none."""
        return None if ins.guard is None else self.src(ins, ins.guard, "pred")

    def simple(self, ins: Instruction, kind: str, compute: Callable[..., Any], result: str | None = None) -> Step:
        """A step for ``d = compute(a, b, ...)``, all sources of type ``kind``; of packed ones they are ``(n, 2)``."""
        put = self.dst(ins, ins.operands[0], result or kind)
        get = [self.src(ins, operand, kind) for operand in ins.operands[1:]]
        if (wanted := _sources(compute)) not in (None, len(get)):
            raise ins.unknown(f"it has {len(get)} sources, {wanted} are wanted")
        if kind.endswith("x2"):
            part = compute
            compute = lambda *given: word(part(*[elements(x, kind[:-2]) for x in given]))  # noqa: E731
        if len(get) == 1:
            one = get[0]
            return lambda group: put(group, compute(one(group)))
        if len(get) == 2:
            left, right = get
            return lambda group: put(group, compute(left(group), right(group)))
        return lambda group: put(group, compute(*[source(group) for source in get]))

    def ufunc(self, ins: Instruction, kind: str, function: Any) -> Step:
        """Like `simple` for a NumPy ufunc of two sources that may write into the result's row."""
        d, a, b = ins.operands
        if ins.guard is None and not kind.endswith("x2") and isinstance(d, Reg) and d.name in self.program.slot:
            cls, slot = self.program.slot[d.name]
            if WIDTH[cls] == BYTES[kind] and cls != "p":
                view = VIEW_OF.get(kind, kind)
                left, right = self.src(ins, a, kind), self.src(ins, b, kind)
                return lambda group: function(left(group), right(group), out=group.rows[view][slot])
        return self.simple(ins, kind, function)


def _sources(compute: Callable[..., Any]) -> int | None:
    """How many arguments a function takes, or the one that it wraps; None: that is not known."""
    compute = getattr(compute, "__wrapped__", compute)
    known: int | None = getattr(compute, "nin", None)  # of NumPy's own
    code = getattr(compute, "__code__", None)
    return known if code is None or code.co_flags & 0x0C or compute.__defaults__ else code.co_argcount


CONTROL = {"bra", "ret", "exit", "trap", "brx", "setmaxnreg", "call"}
