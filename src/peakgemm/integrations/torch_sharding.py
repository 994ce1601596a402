"""How DTensor may shard ``peakgemm::gemm``: by rows, columns, the sum over K, and the batch."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from ..errors import MissingComponent
from . import torch_ops

Rule = tuple[list[Any], list[Any]]  # placements of the result, and of each argument (None: no tensor)


@cache
def register() -> None:
    """Tell DTensor of the rules, once.

    Raises:
        MissingComponent: a torch without them.
    """
    try:
        from torch.distributed.tensor.experimental import register_sharding
    except ImportError:
        raise MissingComponent(f"DTensor's rules need torch 2.5 or newer with torch.distributed, this is "
                               f"{torch.__version__}; run: pip install -U torch") from None
    assert torch_ops  # registers the op
    register_sharding(torch.ops.peakgemm.gemm.default)(rules)


def rules(a: Any, b: Any, c: Any, alpha: float, beta: float, precision: str) -> list[Rule]:
    """The ways to place ``alpha a b + beta c`` along one dimension of a mesh; ``a``, ``b`` and ``c`` have shapes.

    Where K is sharded each rank adds up its part, and the result is a partial sum: so ``c`` is one then.
    """
    from torch.distributed.tensor import Partial, Replicate, Shard

    rank = max(len(a.shape), len(b.shape))

    def placed(x: Any, dim: int) -> Any:
        """How an operand lies where the result is sharded along ``dim``: it broadcasts, or is sharded, too."""
        own = dim - (rank - len(x.shape))
        return Replicate() if own < 0 or x.shape[own] == 1 else Shard(own)

    def rule(out: Any, of_a: Any, of_b: Any) -> Rule:
        of_c = None
        if c is not None:
            of_c = placed(c, out.dim) if isinstance(out, Shard) else out
        return [out], [of_a, of_b, of_c, None, None, None]

    found = [rule(Replicate(), Replicate(), Replicate()),
             rule(Shard(rank - 2), Shard(len(a.shape) - 2), Replicate()),
             rule(Shard(rank - 1), Replicate(), Shard(len(b.shape) - 1)),
             rule(Partial(), Shard(len(a.shape) - 1), Shard(len(b.shape) - 2)),
             rule(Partial(), Partial(), Replicate()), rule(Partial(), Replicate(), Partial())]
    found += [rule(Shard(dim), placed(a, dim), placed(b, dim)) for dim in range(rank - 2)]
    return found
