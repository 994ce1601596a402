"""The launches of host code, ``kernel<<<grid, block, shared>>>(...)``, as far as their values are known without a run.

A value is followed through variables, assignments, functions that return one expression, and from a parameter to the
calls of its function. Of several values of a variable the first counts. What only a run knows is left open, by name.
"""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, wraps
from itertools import islice
from typing import Any, TypeVar, cast

from .expressions import (
    CALLS,
    FUNCTIONS,
    OPERATORS,
    Unknown,
    called,
    converted,
    dtype_of,
    hash_of,
    is_whole,
    meaning,
    parts,
    template_arguments,
    tuple_of,
    variable_of,
)
from .host_code import HostCode, evaluated, operator_of, path

_CONFIGURES = "__cudaPushCallConfiguration"
_ALLOCATES = ("cudaMalloc", "cudaMallocManaged", "cudaMallocAsync", "cudaMallocHost")
_VARIABLES = ("VAR_DECL", "PARM_DECL")
_Method = TypeVar("_Method", bound=Callable[..., Any])
_MOST = 64  # ways to a launch that are followed
_STEPS, _DEEP = 100_000, 150  # expressions that are looked at for a value, and within each other
#: What a function's parameters stand for: an expression with the scope that it is in, or the value of a template's.
Scope = dict[int, Any]
#: What ends the evaluation of an expression; libclang's own calls fail in their way where Python's stack ends.
_ENDS = (Unknown, ArithmeticError, LookupError, MemoryError, RecursionError, StopIteration, TypeError, ValueError,
         ctypes.ArgumentError)


def _limited(method: _Method) -> _Method:
    """A method of `_Reader` that follows an expression, up to `_STEPS` in all and `_DEEP` within each other."""
    @wraps(method)
    def limited(self: Any, cursor: Any, scope: Scope) -> Any:
        self.steps, self.depth = self.steps + 1, self.depth + 1
        try:
            if self.steps > _STEPS or self.depth > _DEEP:
                raise Unknown(cursor.spelling)
            return method(self, cursor, scope)
        finally:
            self.depth -= 1
    return cast(_Method, limited)


@dataclass(frozen=True)
class Pointer:
    """An array of ``elements``, as a launch passes it: from element ``offset`` on, of the memory that ``name`` has."""

    dtype: str
    elements: int
    offset: int
    name: str


@dataclass(frozen=True)
class Launch:
    """One launch; what only a run knows is None.

    Attributes:
        kernel: the kernel as an expression of C++, ``ns::sgemm<128, 8>``.
        where: ``sgemm.cu:12``.
        grid, block: blocks and threads along x, y, z.
        shared: bytes of dynamic shared memory.
        args: a number or a `Pointer` for each parameter.
        names: of the parameters.
        sized: the variables that the size stands for.
        unknown: what is None and what it comes from, in words; of a kernel that only a run knows its name is empty.
        complaint: why that may be so, as `host_code.HostCode.complaint`.
    """

    kernel: str
    where: str
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    shared: int | None
    args: tuple[int | float | Pointer | None, ...]
    names: tuple[str, ...]
    sized: tuple[str, ...]
    unknown: tuple[str, ...]
    complaint: str = ""


@lru_cache(maxsize=8)
def launches(code: HostCode, size: int | None = None) -> list[Launch]:
    """The launches of kernels that the source has, in order; of a function that is called, one for each call.

    ``size`` stands for the whole numbers that a launch passes on from variables, constants apart.
    """
    return _Reader(code, size).launches()


atexit.register(launches.cache_clear)


class _Reader:
    def __init__(self, code: HostCode, size: int | None) -> None:
        self.code, self.size = code, size
        self.functions: dict[int, Any] = {}  # definitions
        self.calls: dict[int, list[tuple[Any, Any]]] = {}  # of a function: the call, and the function that it is in
        self.assigned: dict[int, list[Any]] = {}
        self.allocated: dict[int, Any] = {}  # of a pointer: its bytes
        self.found: list[tuple[Any, Any, tuple[Any, ...]]] = []  # a launch, its function, its conditions
        self.sized: dict[int, str] = {}
        self.first = True  # whether the first of several values counts
        self.steps = self.depth = 0
        self._walk(code.unit.cursor, None, ())

    def _walk(self, cursor: Any, function: Any, conditions: tuple[Any, ...]) -> None:
        children = list(cursor.get_children())
        for number, one in enumerate(children):
            kind, inside, under = one.kind.name, function, conditions
            if not self.code.holds(one):
                continue
            if cursor.kind.name == "IF_STMT" and number:
                under = (*conditions, (children[0], number == 1))
            if kind in FUNCTIONS:
                self.functions[one.canonical.hash] = inside = one.get_definition() or one
            elif kind == "CALL_EXPR":
                configuration = [*one.get_children(), one][1:2]
                if configuration and configuration[0].spelling == _CONFIGURES:
                    self.found.append((one, function, under))
                elif (target := called(one)) is not None:
                    self.calls.setdefault(target.hash, []).append((one, function))
                if one.spelling in _ALLOCATES and len(args := list(one.get_arguments())) > 1:
                    self.allocated.setdefault(hash_of(variable_of(args[0])), args[1])
            elif kind == "BINARY_OPERATOR" and operator_of(one) == "=":
                target, value = one.get_children()
                self.assigned.setdefault(hash_of(variable_of(target)), []).append(value)
            self._walk(one, inside, under)

    def launches(self) -> list[Launch]:
        made = (self._launch(call, scope, conditions) for call, function, conditions in self.found
                for scope in islice(self._scopes(function), _MOST))
        return [one for one in made if one is not None]

    def _scopes(self, function: Any, seen: tuple[int, ...] = ()) -> Iterator[Scope]:
        """What a function's parameters are in each of its calls, from within functions that are called."""
        key = hash_of(function and function.canonical)
        calls = [(call, around) for call, around in self.calls.get(key, ()) if hash_of(around) not in seen]
        for call, around in calls:
            for scope in self._scopes(around, (*seen, hash_of(around))):
                yield self._bound(call, scope)
        if not calls:
            yield {}

    def _bound(self, call: Any, scope: Scope) -> Scope:
        """The scope of a function that is called."""
        inside, function = dict(scope), self.functions.get(hash_of(called(call)))
        children = [] if function is None else list(function.get_children())
        inside.update((one.hash, (arg, scope)) for one, arg in zip(
            (one for one in children if one.kind.name == "PARM_DECL"), call.get_arguments(), strict=False))
        inside.update((one.hash, value) for one, value in zip(
            (one for one in children if "TEMPLATE" in one.kind.name), template_arguments(call.referenced),
            strict=False))
        return inside

    def _launch(self, call: Any, scope: Scope, conditions: tuple[Any, ...]) -> Launch | None:
        callee, configuration, *args = call.get_children()
        self.sized, self.first, self.steps, unknown = {}, True, 0, []

        def known(what: str, of: Callable[..., Any], *given: Any) -> Any:
            self.steps = 0
            try:
                return of(*given, scope)
            except _ENDS as error:
                named = str(error) if isinstance(error, Unknown) else ""
                unknown.append(f"{what} from {named or self.code.said(given[-1])}")
                return None

        try:
            kernel, declared = self._kernel(callee, scope)
        except _ENDS as error:
            named = str(error) if isinstance(error, Unknown) and str(error) else self.code.said(callee)
            return Launch("", self.code.where(call), None, None, None, (), (), (), (named,))
        parameters = [one for one in declared.get_children() if one.kind.name == "PARM_DECL"]
        for parameter, arg in zip(parameters, args, strict=False):
            if self.size is not None and is_whole(parameter.type):
                with suppress(*_ENDS):
                    self._stand(arg, scope)
        self.first = False
        held = [(known("", self._value, one), wanted) for one, wanted in conditions]
        if any(value is not None and bool(value) is not wanted for value, wanted in held):
            return None
        self.first, unknown = True, []
        grid, block, *rest = configuration.get_arguments()
        return Launch(
            kernel, self.code.where(call), known("--grid", self._dim, grid), known("--block", self._dim, block),
            known("--shared", self._value, rest[0]) if rest else 0,
            tuple(known(f"--arg ({parameter.spelling})", self._argument, parameter, arg)
                  for parameter, arg in zip(parameters, args, strict=False)),
            tuple(one.spelling for one in parameters), tuple(dict.fromkeys(self.sized.values())), tuple(unknown),
            self.code.complaint if unknown else "")

    @_limited
    def _stand(self, arg: Any, scope: Scope) -> bool:
        """Let the size stand for a variable, and for those that it is passed from; whether it does."""
        variable = variable_of(arg)
        if variable is None or variable.kind.name not in _VARIABLES or evaluated(arg) is not None:
            return evaluated(arg) is None and arg.kind.name in ("ARRAY_SUBSCRIPT_EXPR", "CALL_EXPR")
        if variable.hash not in scope or self._stand(*scope[variable.hash]):
            self.sized[variable.hash] = variable.spelling
        return variable.hash in self.sized

    @_limited
    def _kernel(self, callee: Any, scope: Scope) -> tuple[str, Any]:
        """The kernel's name with its template arguments, and its definition."""
        reference = next((one for one in callee.walk_preorder() if one.kind.name == "DECL_REF_EXPR"), callee)
        target = meaning(reference)
        if target.kind.name in _VARIABLES:  # a pointer to a function
            return self._kernel(*self._source(target, scope))
        name = path(target) if target.kind.name != "OVERLOADED_DECL_REF" else next(
            (one for one in self.code.kernels if one.split("::")[-1] == target.spelling), "")
        declared = self.code.kernels.get(name)
        if declared is None:
            raise Unknown(target.spelling)
        if declared.kind.name != "FUNCTION_TEMPLATE":
            return name, declared
        written = template_arguments(target) or [  # else they depend on a template around it
            self._type(one, scope) if one.kind.name == "TYPE_REF" else self._value(one, scope) for one in
            reference.get_children() if not one.kind.name.endswith("_REF") or one.kind.name == "TYPE_REF"]
        return f"{name}<{', '.join(map(str, written))}>", declared

    def _type(self, cursor: Any, scope: Scope) -> Any:
        """A type; one that a template around is instantiated with is float where no call says it."""
        of = meaning(cursor)
        return scope.get(of.hash, "float") if of.kind.name == "TEMPLATE_TYPE_PARAMETER" else cursor.type.spelling

    def _argument(self, parameter: Any, arg: Any, scope: Scope) -> Any:
        kind = parameter.type.get_canonical()
        if kind.kind.name == "POINTER" and evaluated(arg) != 0:
            dtype = dtype_of(kind.get_pointee())
            variable, offset, around = self._pointer(arg, scope)
            try:
                size = int(self._value(self.allocated[variable.hash], around))
            except (KeyError, Unknown):
                if self.size is None:
                    raise Unknown(f"the size of {variable.spelling}") from None
                size = self.size * self.size * int(dtype[1:]) // 8  # a square matrix
            return Pointer(dtype, size // (int(dtype[1:]) // 8), offset, variable.spelling)
        real = kind.kind.name in ("FLOAT", "DOUBLE") or "type-parameter" in kind.spelling
        try:
            value = self._value(arg, scope)
        except Unknown:
            if not real:
                raise
            return float("beta" not in parameter.spelling.lower())  # of alpha * A * B + beta * C
        return float(value) if real else int(value)

    @_limited
    def _pointer(self, arg: Any, scope: Scope) -> tuple[Any, int, Scope]:
        """The variable whose memory a pointer is into, from which element on, and the scope that it is in."""
        inside = parts(arg)
        if arg.kind.name in ("BINARY_OPERATOR", "ARRAY_SUBSCRIPT_EXPR") and len(inside) == 2:  # p + 256, &p[256]
            base, index = sorted(inside, key=lambda one: one.type.get_canonical().kind.name != "POINTER")
            variable, offset, around = self._pointer(base, scope)
            return variable, offset + int(self._value(index, scope)) * (-1 if operator_of(arg) == "-" else 1), around
        if arg.kind.name in ("DECL_REF_EXPR", "MEMBER_REF_EXPR"):
            variable = meaning(arg)
            if variable.hash not in self.allocated and variable.kind.name in _VARIABLES:
                try:
                    return self._pointer(*self._source(variable, scope))
                except Unknown:
                    pass
            return variable, 0, scope
        if len(inside) != 1 or arg.kind.name == "CALL_EXPR":
            raise Unknown(arg.spelling)
        return self._pointer(inside[0], scope)

    def _dim(self, cursor: Any, scope: Scope) -> tuple[int, int, int]:
        value = self._value(cursor, scope)
        x, y, z = [*map(int, value if isinstance(value, tuple) else (value,)), 1, 1][:3]
        if min(x, y, z) < 1:
            raise Unknown(f"a dimension of {min(x, y, z)}")
        return x, y, z

    def _source(self, variable: Any, scope: Scope) -> tuple[Any, Scope]:
        """The expression that a variable has its value of, and the scope that it is in."""
        if isinstance(held := scope.get(variable.hash), tuple):
            return held
        values = [one for one in (*parts(variable), *self.assigned.get(variable.hash, ()))
                  if all(hash_of(inner.referenced) != variable.hash for inner in one.walk_preorder())]  # no n = n + 1
        if not values or (len(values) > 1 and not self.first):
            raise Unknown(variable.spelling)
        return values[0], scope

    @_limited
    def _value(self, cursor: Any, scope: Scope) -> Any:
        """The value of an expression: a number, or a tuple of a dim3 or an array.

        Raises:
            Unknown: only a run knows it.
        """
        if (constant := evaluated(cursor)) is not None:
            return constant
        kind = cursor.kind.name
        inside = parts(cursor)

        def value(one: Any, around: Scope = scope) -> Any:
            return self._value(one, around)

        if kind == "DECL_REF_EXPR":
            variable = meaning(cursor)
            if variable.hash in self.sized:
                return self.size
            if variable.hash in scope and not isinstance(scope[variable.hash], tuple):
                return scope[variable.hash]
            if variable.kind.name not in _VARIABLES:
                raise Unknown(cursor.spelling)
            return converted(variable.type, value(*self._source(variable, scope)))
        if kind == "MEMBER_REF_EXPR" and inside and cursor.spelling in ("x", "y", "z"):
            return [*tuple_of(value(inside[0]), cursor), 1, 1]["xyz".index(cursor.spelling)]
        if kind in ("BINARY_OPERATOR", "UNARY_OPERATOR") and operator_of(cursor) in OPERATORS:
            return OPERATORS[operator_of(cursor)](*map(value, inside))
        if kind == "CONDITIONAL_OPERATOR":
            return value(inside[1] if value(inside[0]) else inside[2])
        if kind == "ARRAY_SUBSCRIPT_EXPR":
            return tuple_of(value(inside[0]), cursor)[int(value(inside[1]))]
        if kind == "INIT_LIST_EXPR" or (kind == "CALL_EXPR" and cursor.spelling == "dim3"):
            values = tuple(map(value, inside))
            return values[0] if len(values) == 1 else values
        if kind == "CALL_EXPR":
            if cursor.spelling in CALLS:
                return CALLS[cursor.spelling](*map(value, cursor.get_arguments()))
            function = self.functions.get(hash_of(called(cursor)))
            returned = [one for one in function.walk_preorder() if one.kind.name == "RETURN_STMT"] if function else []
            if len(returned) != 1:
                raise Unknown(f"{cursor.spelling}()")
            return converted(cursor.type, value(next(returned[0].get_children()), self._bound(cursor, scope)))
        if len(inside) != 1:
            raise Unknown(cursor.spelling)
        return converted(cursor.type, value(inside[0]))
