"""Facts and figures of kernels: static ones for any architecture, measured ones on the GPU at hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...kernels import validity
from ...kernels.bound import Bound, bind
from ...kernels.library import compile_for
from ...kernels.registry import LADDER, Kernel
from ...problem import Config, Problem
from ...runtime.architectures import architecture
from ...runtime.compile import Compiled, in_parallel
from ...runtime.device import Gpu
from ...sass.facts import static_facts
from .errors import bound
from .occupancy import occupancy
from .operands import address, launcher
from .peers import Peer
from .products import AgainstCublas, Make
from .roofline import bound_tflops, bytes_per_flop
from .simulated import COUNTERS, LARGEST, simulate
from .suites import Case
from .timer import Timer, Work

# Fields of a row that need a run, on the GPU or in the simulator: None where there was none.
MEASURED = ("backend", "max_error", "reference_error", "tflops", "ratio_to_cublas", *COUNTERS)


def static_row(kernel: Kernel, config: Config, arch: str, gpu: Gpu | None = None) -> dict[str, Any]:
    """Everything that the compiler and arithmetic tell: one row of a record, measured fields None.

    ``roofline_tflops`` is the bound of the tiling if no cache helped, for ``gpu``, else for the
    reference GPU of ``arch``.
    """
    limits = architecture(arch)
    compiled = compile_for(kernel, config, Problem.contiguous(1, 1, 1), arch)  # a rung's depends on no problem
    shared = kernel.shared_bytes(config)
    fit = occupancy(limits, config.block_threads, int(compiled.registers or 0), shared)
    asked = bytes_per_flop(config)
    peak, bandwidth = (gpu.peak_tflops, gpu.bandwidth_gbs) if gpu else (limits.peak_tflops, limits.gpu_bandwidth_gbs)
    return {
        "number": kernel.number,
        "name": kernel.name,
        "idea": kernel.idea,
        "file": kernel.file,
        "config": config.to_json(),
        "path": "aligned" if config.aligned else "guarded",
        "registers": compiled.registers,
        "spill_bytes": compiled.spill_bytes,
        "shared_bytes": shared,
        "threads": config.block_threads,
        "blocks_per_sm": fit.blocks_per_sm,
        "warps_per_sm": fit.warps_per_sm,
        "occupancy": fit.fraction,
        "limited_by": fit.limited_by,
        "bytes_per_flop": asked,
        "roofline_tflops": bound_tflops(peak * kernel.peak, bandwidth, asked),
        **({"patch": compiled.note} if compiled.note else {}),
        **static_facts(compiled.code, arch),
        **dict.fromkeys(MEASURED),
    }


def path_for(kernel: Kernel, config: Config, arch: str, shape: tuple[int, int, int]) -> Config:
    """The compilation that packed matrices of ``shape`` would run."""
    return validity.choose(kernel, config, architecture(arch), Problem.contiguous(*shape))


def rung_product(kernel: Kernel, config: Config, gpu: Gpu, peer: Peer, alpha: float = 1.0, beta: float = 0.0,
                 edit: Callable[[Compiled], Compiled] | None = None) -> Make:
    """A rung's product of packed matrices; ``edit`` makes of its cubin the one that runs."""
    def make(a: Any, b: Any, c: Any) -> Work:
        (m, k), n = a.shape, b.shape[1]
        problem = Problem.contiguous(m, n, k, alpha, beta)
        product = bind(kernel, config, problem, gpu) if edit is None else Bound(kernel, config, problem, gpu, edit=edit)
        return launcher(product, peer)(address(a), address(b), address(c))
    return make


def configurations(kernel: Kernel, arch: str, named: bool) -> dict[str | None, Config]:
    """The named configurations of a kernel where they are asked for and there are any, else its default (None)."""
    if named and kernel.named:
        return dict(kernel.named.items())
    return {None: kernel.config_for(arch)}


def ladder(kernels: Sequence[Kernel], shapes: Sequence[tuple[int, int, int]], arch: str, gpu: Gpu | None,
           peer: Peer | None, done: Callable[[str], None] | None = None, named: bool = False) -> list[dict[str, Any]]:
    """One run per shape, each with a row per kernel, or with ``named`` one per named configuration.

    Measured where ``gpu`` and ``peer`` are given; simulated, where there is no GPU, up to `LARGEST` multiply-adds.
    """
    tell = done or (lambda what: None)
    runs = []
    timer = Timer(peer) if peer else None
    for shape in shapes:
        jobs = [(kernel, name, path_for(kernel, config, arch, shape)) for kernel in kernels
                for name, config in configurations(kernel, arch, named).items()]

        def one(job: tuple[Kernel, str | None, Config]) -> dict[str, Any]:
            kernel, name, config = job
            row = {**static_row(kernel, config, arch, gpu), "config_name": name}
            tell(f"{kernel.label} compiled")
            return row

        rows = in_parallel(one, jobs)
        if gpu is not None and peer is not None and timer is not None:
            against = AgainstCublas(Case("", *shape), gpu, peer, timer)
            for row, (kernel, _, config) in zip(rows, jobs, strict=True):
                row.update(against.row(rung_product(kernel, config, gpu, peer)))
                tell(f"{kernel.label} measured")
        elif gpu is None and shape[0] * shape[1] * shape[2] <= LARGEST:
            for row, (kernel, _, config) in zip(rows, jobs, strict=True):
                row.update(simulate(kernel, config, arch, shape))
                tell(f"{kernel.label} simulated")
        runs.append({"shape": list(shape), "rungs": rows})
    return runs


def wrong(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Kernels in which the simulator found faults, or whose error exceeds the bound of a chain of FMAs and what a
    kernel's own `Kernel.rounding` adds."""
    rounding = {kernel.number: kernel.rounding for kernel in LADDER}
    return [f"{row['number']:02} {row['name']} at {run['shape']} ({row['max_error']:.3g} eps, "
            f"{row.get('faults', 0)} faults)"
            for run in runs for row in run["rungs"] if row.get("max_error") is not None
            and (row.get("faults") or not row["max_error"] <= bound(run["shape"][2]) + rounding[row["number"]])]
