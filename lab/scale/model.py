"""A small transformer that trains on one device or tensor-parallel on several: what the scale suite trains."""

from __future__ import annotations

from typing import Any

HEADS, BLOCKS, TOKENS = 4, 2, 16


def losses(mesh: Any, *, steps: int, width: int, device: str, batch: int = 4) -> list[float]:
    """The loss of each of ``steps`` steps of a transformer of two blocks, from a fixed seed.

    Args:
        mesh: a 1-D mesh: the blocks' projections are sharded by columns, then by rows. None: one device.
        width: of the model; a multiple of 4 heads and of the ranks.
        batch: sequences of 16 tokens a step.
    """
    import torch
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = _model(width).to(device)
    if mesh is not None:
        for block in model:
            parallelize_module(block, mesh, {
                "query": ColwiseParallel(), "key": ColwiseParallel(), "value": ColwiseParallel(),
                "projection": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()})
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(batch, TOKENS, width, generator=draw).to(device)
    targets = torch.randn(batch, TOKENS, width, generator=draw).to(device)
    # One by one: torch's fused steps, its default on a GPU, refuse plain tensors (the norms') beside DTensors.
    step, found = torch.optim.SGD(model.parameters(), lr=0.05, foreach=False), []
    for _ in range(steps):
        step.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        step.step()
        whole = loss.full_tensor() if isinstance(loss, DTensor) else loss
        found.append(float(whole.detach()))
    return found


def _model(width: int) -> Any:
    import torch
    from torch import nn

    class Block(nn.Module):  # type: ignore[misc]
        """Attention and a layer of four times the width, each added to its input."""

        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value, self.projection = (nn.Linear(width, width) for _ in range(4))
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

        def forward(self, x: Any) -> Any:
            """``(batch, tokens, width)`` to the same."""
            y = self.first(x)
            # Under a mesh these are a rank's heads: fewer of the same width.
            parts = [layer(y).unflatten(-1, (-1, width // HEADS)).transpose(1, 2)
                     for layer in (self.query, self.key, self.value)]
            scores = torch.matmul(parts[0], parts[1].transpose(-1, -2)) / (width // HEADS) ** 0.5
            mixed = torch.matmul(scores.softmax(-1), parts[2]).transpose(1, 2).flatten(-2)
            x = x + self.projection(mixed)
            return x + self.down(torch.nn.functional.gelu(self.up(self.second(x))))

    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(BLOCKS)))
