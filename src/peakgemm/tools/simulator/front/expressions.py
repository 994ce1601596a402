"""Expressions of host code as libclang's cursors: what they consist of, the variables and functions that they name, and
what operators make of numbers."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from .host_code import template_of

FUNCTIONS = ("FUNCTION_DECL", "CXX_METHOD", "FUNCTION_TEMPLATE")
_WORD = 64  # bits of the widest whole numbers


class Unknown(Exception):
    """A value that only a run knows; its text is the name of what holds it."""


def called(call: Any) -> Any:
    """The function that is called, or its template; None: something else is."""
    target = call.referenced
    return template_of(target).canonical if target is not None and target.kind.name in FUNCTIONS else None


def template_arguments(function: Any) -> list[Any]:
    """Of a template's instance: its arguments, those that are neither type nor number left out."""
    if function is None or function.kind.name != "FUNCTION_DECL":
        return []
    kinds = [(number, function.get_template_argument_kind(number).name)
             for number in range(function.get_num_template_arguments())]
    return [function.get_template_argument_type(number).spelling if kind == "TYPE" else
            function.get_template_argument_value(number) for number, kind in kinds if kind in ("TYPE", "INTEGRAL")]


def parts(cursor: Any) -> list[Any]:
    """The expressions that something consists of."""
    return [one for one in cursor.get_children() if one.kind.is_expression()]


def variable_of(cursor: Any) -> Any:
    """The variable that an expression is, by its address or cast too; None: it is more than one."""
    while cursor.kind.name not in ("DECL_REF_EXPR", "MEMBER_REF_EXPR"):
        inside = parts(cursor)
        if len(inside) != 1 or cursor.kind.name == "CALL_EXPR":
            return None
        cursor = inside[0]
    return cursor.referenced


def meaning(cursor: Any) -> Any:
    """What a name means."""
    if cursor.referenced is None:
        raise Unknown(cursor.spelling)
    return cursor.referenced


def hash_of(cursor: Any) -> int:
    """What tells declarations apart; 0: there is none."""
    return 0 if cursor is None else int(cursor.hash)


def is_whole(kind: Any) -> bool:
    """Whether a type is one of whole numbers, truth and letters apart."""
    return kind.get_canonical().kind.name.removeprefix("U") in ("INT", "LONG", "LONGLONG", "SHORT")


def converted(kind: Any, value: Any) -> Any:
    """A value as a variable of its type has it."""
    if not is_whole(kind) or isinstance(value, tuple):
        return value
    if abs(whole := int(value)) >> _WORD:
        raise Unknown("a number too large")
    return whole


def dtype_of(kind: Any) -> str:
    """The word for an array of that type (`arguments.DTYPES`); of vectors that of what they hold."""
    kind = kind.get_canonical()
    if "type-parameter" in kind.spelling:
        return "f32"
    if "half" in kind.spelling:
        return "f16"
    if kind.kind.name == "RECORD" and (fields := list(kind.get_fields())):
        return dtype_of(fields[0].type)
    if kind.kind.name in ("VOID", "POINTER", "RECORD"):
        raise Unknown(f"a pointer to {kind.spelling}")
    letter = "f" if kind.kind.name in ("FLOAT", "DOUBLE") else "u" if kind.kind.name[0] == "U" else "s"
    return f"{letter}{8 * kind.get_size()}"


def _bits(count: int) -> int:
    """A shift that C++ defines."""
    if not 0 <= count < _WORD:
        raise Unknown(f"a shift by {count}")
    return count


def tuple_of(value: Any, cursor: Any) -> tuple[Any, ...]:
    """The value of a cursor, which has to be a dim3 or an array."""
    if not isinstance(value, tuple):
        raise Unknown(cursor.spelling)
    return value


def _quotient(a: Any, b: Any) -> Any:
    return a / b if isinstance(a, float) or isinstance(b, float) else int(math.copysign(abs(a) // abs(b), a * b))


CALLS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "pow": pow, **{
    f"{name}{end}": getattr(math, name) for name in ("ceil", "floor", "sqrt") for end in ("", "f")}}
OPERATORS: dict[str, Callable[..., Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": lambda a, b: _quotient(a, b), "%": math.fmod,
    "<<": lambda a, b: operator.lshift(a, _bits(b)), ">>": lambda a, b: operator.rshift(a, _bits(b)),
    "&": operator.and_, "|": operator.or_, "^": operator.xor, "<": operator.lt, ">": operator.gt, "<=": operator.le,
    ">=": operator.ge, "==": operator.eq, "!=": operator.ne, "&&": lambda a, b: bool(a and b),
    "||": lambda a, b: bool(a or b), "!": operator.not_, "~": operator.invert, "negated": operator.neg}
