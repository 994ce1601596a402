"""`peakgemm bench` with CUTLASS's kernels among the peers.

    python -m lab.peers --suite layouts,skinny --peers triton,cutlass --json results/h100/bench-cutlass.json
"""

from __future__ import annotations

from typing import Any

from lab.peers import cutlass_gemm
from lab.runner import run
from peakgemm.cli import bench
from peakgemm.runtime import device
from peakgemm.tools.bench.contenders import CONTENDERS, Multiply
from peakgemm.tools.bench.peers import Peer


class Cutlass:
    """CUTLASS's SIMT kernels, the fastest of a handful of tiles (`cutlass_gemm`); the first use builds them."""

    name, capture = "cutlass", True

    def __init__(self, peer: Peer) -> None:
        self._tools = cutlass_gemm.find_tools()
        self._products = cutlass_gemm.Products(self._tools, device.require(), peer)

    def work(self, a: Any, b: Any, out: Any) -> Multiply:
        return self._products.work(a, b, out)

    def versions(self) -> dict[str, str]:
        return self._tools.versions()


CONTENDERS["cutlass"] = Cutlass
command = bench.command

if __name__ == "__main__":
    run(command)
