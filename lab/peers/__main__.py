"""`peakgemm bench` with CUTLASS's kernels among the peers.

    python -m lab.peers --suite layouts,skinny --peers triton,cutlass --json results/h100/bench-cutlass.json
"""

from __future__ import annotations

from lab.peers import cutlass_gemm
from lab.runner import run
from peakgemm.cli import bench
from peakgemm.runtime import device
from peakgemm.tools.bench.contenders import CONTENDERS, Contender
from peakgemm.tools.bench.peers import Peer


def cutlass(peer: Peer) -> Contender:
    """CUTLASS's SIMT kernels, the fastest of a handful of tiles (`cutlass_gemm`); the first use builds them."""
    tools = cutlass_gemm.find_tools()
    return Contender("cutlass", cutlass_gemm.Products(tools, device.require(), peer).work, tools.versions())


CONTENDERS["cutlass"] = cutlass
command = bench.command

if __name__ == "__main__":
    run(command)
