"""A product of arrays that are spread over several devices, under ``jit``: who computes which part.

Rows of ``a``, columns of ``b`` and batches may be spread, as XLA finds them; each device then multiplies what it has.
K is gathered: a sum over devices would be another chain of additions, with other bits.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from jax.experimental.custom_partitioning import custom_partitioning
from jax.interpreters import mlir
from jax.sharding import NamedSharding, PartitionSpec


def is_partitioned(ctx: mlir.LoweringRuleContext) -> bool:
    """Whether XLA decides for this program how arrays are spread over devices."""
    context = ctx.module_context.axis_context
    if isinstance(context, mlir.SPMDAxisContext):
        return set(context.manual_axes) != set(context.mesh.axis_names)
    return (isinstance(context, mlir.ShardingContext) and context.num_devices > 1
            and context.device_assignment is not None)


@cache
def partitioned(primitive: Any, trans_a: bool, trans_b: bool, **params: Any) -> Any:
    """The product, which ``primitive`` computes on each device, as one that XLA asks how to spread."""
    params = {"trans_a": trans_a, "trans_b": trans_b, **params}

    def multiply(*operands: Any) -> Any:
        return primitive.bind(*operands, **params)

    def partition(mesh: Any, arguments: Any, result: Any) -> Any:
        mesh, spec = result.sharding.mesh, _axes(result)
        batch, rows, columns = spec[:-2], spec[-2], spec[-1]
        matrices = ((None, rows) if trans_a else (rows, None), (columns, None) if trans_b else (None, columns),
                    (rows, columns))
        shardings = tuple(
            NamedSharding(mesh, PartitionSpec(*(None if size == 1 else axis for size, axis in
                                                zip(argument.shape, (*batch, *matrix), strict=True))))
            for argument, matrix in zip(arguments, matrices, strict=False))
        return mesh, multiply, NamedSharding(mesh, PartitionSpec(*spec)), shardings

    def infer(mesh: Any, arguments: Any, result: Any) -> Any:
        specs = [_axes(x) for x in arguments[:2]]
        batch = [x or y for x, y in zip(specs[0][:-2], specs[1][:-2], strict=True)]
        rows, columns = specs[0][-1 if trans_a else -2], specs[1][-2 if trans_b else -1]
        return NamedSharding(mesh, PartitionSpec(*_once(*batch, rows, columns)))

    def rule(mesh: Any, operands: Any, results: Any) -> tuple[str, dict[str, Any]]:
        """As einsum's: letters of rows, columns and batches, each its own where an operand has one element of it."""
        rank = len(results[0].shape)
        batch = [f"b{i}" for i in range(rank - 2)]
        matrices = (["k", "m"] if trans_a else ["m", "k"], ["n", "k"] if trans_b else ["k", "n"], ["m", "n"])
        terms = []
        for number, (operand, matrix) in enumerate(zip(operands, matrices, strict=False)):
            sizes = operand.shape
            terms.append(" ".join(name if size == whole or name == "k" else f"one{number}x{i}" for i, (
                name, size, whole) in enumerate(zip(batch + matrix, sizes, _wanted(
                    batch + matrix, results[0].shape, rank), strict=True))))
        text = ", ".join(terms) + " -> " + " ".join([*batch, "m", "n"])
        return text, {"need_replication_factors": ("k",)}

    spread = custom_partitioning(multiply)
    spread.def_partition(partition=partition, infer_sharding_from_operands=infer, sharding_rule=rule)
    return spread


def _axes(x: Any) -> tuple[Any, ...]:
    """The axis of the mesh, or None, that each dimension is spread over."""
    spec = tuple(getattr(x.sharding, "spec", ()))
    return spec + (None,) * (len(x.shape) - len(spec))


def _wanted(names: list[str], result: Any, rank: int) -> list[int]:
    """The result's size of each named dimension; -1 for k."""
    sizes = {f"b{i}": result[i] for i in range(rank - 2)} | {"m": result[rank - 2], "n": result[rank - 1], "k": -1}
    return [sizes[name] for name in names]


def _once(*axes: Any) -> list[Any]:
    """Each axis of the mesh at its first place alone."""
    seen: set[Any] = set()
    found = []
    for axis in axes:
        names = axis if isinstance(axis, tuple) else (axis,)
        found.append(None if axis is None or seen & set(names) else axis)
        seen |= set(names) - {None}
    return found

