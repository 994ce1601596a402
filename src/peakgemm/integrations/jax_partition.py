"""A product of arrays that are spread over several devices, under ``jit``: who computes which part.

Rows of ``a``, columns of ``b`` and batches may be spread, as XLA decides; each device then multiplies what it has. K is
gathered: a sum over devices would be another chain of additions, with other bits.
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

    def dimensions(rank: int) -> list[list[str]]:
        """Names of the dimensions of a, b and c; c's are the result's."""
        batch = [f"b{i}" for i in range(rank - 2)]
        return [[*batch, *("km" if trans_a else "mk")], [*batch, *("nk" if trans_b else "kn")], [*batch, "m", "n"]]

    def partition(mesh: Any, arguments: Any, result: Any) -> Any:
        every = dimensions(len(result.shape))
        axes = dict(zip(every[2], _axes(result), strict=True))
        mesh = result.sharding.mesh
        shardings = tuple(
            NamedSharding(mesh, PartitionSpec(*(None if size == 1 else axes.get(name)
                                                for size, name in zip(argument.shape, names, strict=True))))
            for argument, names in zip(arguments, every, strict=False))
        return mesh, multiply, NamedSharding(mesh, PartitionSpec(*axes.values())), shardings

    def infer(mesh: Any, arguments: Any, result: Any) -> Any:
        every = dimensions(len(result.shape))
        axes: dict[str, Any] = {}
        for argument, names in zip(arguments[:2], every, strict=False):
            axes |= {name: axis for name, axis in zip(names, _axes(argument), strict=True) if not axes.get(name)}
        seen: set[Any] = set()
        spec = []
        for name in every[2]:  # an axis of the mesh spreads one dimension
            own = set(axes[name] if isinstance(axes[name], tuple) else [axes[name]]) - {None}
            spec.append(None if own & seen else axes[name])
            seen |= own
        return NamedSharding(mesh, PartitionSpec(*spec))

    def rule(mesh: Any, operands: Any, results: Any) -> tuple[str, dict[str, Any]]:
        """As einsum's; a dimension of one element that is broadcast has a name of its own."""
        every = dimensions(len(results[0].shape))
        sizes = dict(zip(every[2], results[0].shape, strict=True))
        terms = [" ".join(name if size == sizes.get(name, size) else f"one{number}x{name}"
                          for size, name in zip(operand.shape, names, strict=True))
                 for number, (operand, names) in enumerate(zip(operands, every, strict=False))]
        return f"{', '.join(terms)} -> {' '.join(every[2])}", {"need_replication_factors": ("k",)}

    spread = custom_partitioning(multiply)
    spread.def_partition(partition=partition, infer_sharding_from_operands=infer, sharding_rule=rule)
    return spread


def _axes(x: Any) -> tuple[Any, ...]:
    """The axis of the mesh, or None, that each dimension is spread over."""
    spec = tuple(getattr(x.sharding, "spec", ()))
    return spec + (None,) * (len(x.shape) - len(spec))
