"""A kernel and the functions that it calls as one run of instructions: callees first, so that the lanes of a call are
behind those that made none and meet them where it returns.

What a function has for itself, its parameters, results and local variables, lies in a frame in local memory, as do the
parameters that it passes on; accesses to them become accesses to local memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from .ptx import Frame, Imm, Instruction, Kernel, Linked, Mem, Module, Operand, Pair, Param, Reg, Sym, Variable, Vec

HEADER = 8  # bytes of a frame: where to return to, the caller's frame
CODE = 0x0300000000000  # what the address of a function is counted from
STEP = 16


def address_of_function(number: int) -> int:
    """The address of the function of that number among those linked."""
    return CODE + STEP * number


def link(kernel: Kernel, module: Module) -> Kernel:
    """``kernel`` with what it calls; itself where it calls nothing."""
    if not any(ins.base == "call" for ins in kernel.instructions):
        return kernel
    called: dict[str, set[str]] = {}
    order: list[str] = []
    _visit(kernel, module, called, order)
    out = Kernel(kernel.name, kernel.params, dict(kernel.registers), max_threads=kernel.max_threads,
                 min_blocks=kernel.min_blocks, max_registers=kernel.max_registers, cluster=kernel.cluster,
                 variables=list(kernel.variables), line=kernel.line, skipped=kernel.skipped)
    out.registers["%frame"] = "b32"
    for name in order:
        function = module.functions[name]
        start = len(out.instructions)
        places, size = _frame(function)
        _append(out, function, module, places)
        out.variables += [one for one in function.variables if one.name not in places]
        out.linked[name] = Linked(name, start, len(out.instructions),
                                  [(param, places[param.name]) for param in function.results],
                                  [(param, places[param.name]) for param in function.params],
                                  size, _reaches(name, name, called), called[name])
    out.start = len(out.instructions)
    _append(out, kernel, module, None)
    return out


def _visit(kernel: Kernel, module: Module, called: dict[str, set[str]], order: list[str]) -> None:
    """Callees of ``kernel`` and theirs, each behind those that it calls itself, those of a ring aside."""
    stack: list[tuple[str, Iterator[str]]] = [("", iter(sorted(_named(kernel, module))))]
    while stack:
        name, left = stack[-1]
        following = next(left, None)
        if following is None:
            stack.pop()
            if name:
                order.append(name)
        elif following not in called:
            called[following] = _named(module.functions[following], module)
            stack.append((following, iter(sorted(called[following]))))


def _named(kernel: Kernel, module: Module) -> set[str]:
    """The functions that it calls, or may call."""
    found = {_real(name, module) for ins in kernel.instructions for operand in ins.operands
             for name in _symbols(operand)}
    if any(ins.base == "call" and isinstance(ins.operands[1], Reg) for ins in kernel.instructions):
        found |= {_real(reference.name, module) for one in module.variables.values() for reference in one.references}
    return {name for name in found if name in module.functions}


def _real(name: str, module: Module) -> str:
    return module.aliases.get(name, name)


def _symbols(operand: Operand) -> list[str]:
    if isinstance(operand, Sym):
        return [operand.name]
    if isinstance(operand, Mem):
        return _symbols(operand.base)
    if isinstance(operand, Vec):
        return [name for item in operand.items for name in _symbols(item)]
    return []


def _reaches(start: str, goal: str, called: dict[str, set[str]]) -> bool:
    seen, left = set[str](), [start]
    while left:
        for name in called[left.pop()]:
            if name == goal:
                return True
            if name not in seen:
                seen.add(name)
                left.append(name)
    return False


def _frame(function: Kernel) -> tuple[dict[str, int], int]:
    """Where in its frame each result, parameter and local variable of a function lies, and how many bytes they take."""
    size, places = HEADER, dict[str, int]()
    own: list[Param | Variable] = [*function.results, *function.params]
    for one in [*own, *(one for one in function.variables if one.space in ("local", "param"))]:
        align = max(one.align, 1)
        size = -(-size // align) * align
        places[one.name] = size
        size += one.size
    return places, size


def _append(out: Kernel, part: Kernel, module: Module, places: dict[str, int] | None) -> None:
    """Append the instructions of a function, whose own names lie at ``places`` of its frame, or of the kernel."""
    start = len(out.instructions)
    passed = {one.name for one in part.variables if one.space == "param"}
    for ins in part.instructions:
        operands = tuple(_placed(operand, places or {}, module) for operand in ins.operands)
        opcode = _opcode(ins, places is not None, passed)
        mine = Instruction(len(out.instructions), opcode, operands, ins.guard, ins.text, ins.ptx_line, ins.file,
                           ins.line)
        error = ins.error
        if ins.base == "call" and isinstance(what := operands[1], Sym):
            error = module.unusable.get(what.name)
        if error is not None:
            mine.refuse(error)
        out.instructions.append(mine)
    out.labels |= {name: start + place for name, place in part.labels.items()}
    out.tables |= part.tables
    out.registers |= part.registers


def _placed(operand: Operand, places: dict[str, int], module: Module) -> Operand:
    if isinstance(operand, Sym):
        if operand.name in places:
            return Frame(places[operand.name] + operand.offset)
        return Sym(_real(operand.name, module), operand.offset)
    if isinstance(operand, Mem):
        base = _placed(operand.base, places, module)
        assert isinstance(base, (Reg, Sym, Imm, Frame))
        return Mem(base, operand.offset, operand.index)
    if isinstance(operand, Vec):
        return Vec(tuple(_placed(item, places, module) for item in operand.items))
    if isinstance(operand, Pair):
        return Pair(_placed(operand.first, places, module), _placed(operand.second, places, module))
    return operand


def _opcode(ins: Instruction, function: bool, passed: set[str]) -> str:
    """The opcode, with ``local`` for ``param`` where it means a parameter of a call or of a function."""
    base, *parts = ins.opcode.split(".")
    space = next((part for part in parts if part in ("param", "param::func")), "")
    if not space or base not in ("ld", "st", "cvta"):
        return ins.opcode
    place = ins.operands[1] if base == "ld" and len(ins.operands) > 1 else None
    own = isinstance(place, Mem) and isinstance(place.base, Sym) and place.base.name in passed
    if not (function or own or base == "st" or space == "param::func"):
        return ins.opcode
    return ".".join([base, *("local" if part == space else part for part in parts)])
