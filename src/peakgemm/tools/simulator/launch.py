"""From a source and arguments to a run: find the PTX, convert the arguments, check the limits."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InvalidType, InvalidValue
from ...kernels import registry
from ...kernels.library import compile_for
from ...problem import Problem
from ...runtime.architectures import LARGEST_CLUSTER, architecture
from ...runtime.compile import Compiled
from .checks.global_races import GlobalLog
from .core.collector import seldom
from .core.memory import Arena, Segment
from .core.observer import Observer
from .core.tensor_map import BYTES as TENSOR_MAP
from .core.tensor_map import TensorMap
from .front.initialisers import referring
from .front.link import address_of_function, link
from .front.parser import parse
from .front.program import Program, build, smallest_access
from .front.ptx import Kernel, Module, Param, Variable
from .front.sources import display, kernel_of, ptx_of
from .machine import Machine
from .ops.build import Build
from .ops.control import compile_kernel
from .ops.frames import Frames
from .report import Fault, Report, totals

MOST_PARAMETERS = 32764  # bytes of a kernel's parameters, from sm_70 and CUDA 12.1 on
CACHE = 1 << 20  # bytes of registers of one batch that stay in the cache
SHARED_CACHE = 4 << 20  # bytes of shared memory of one batch; the race check takes a multiple
MOST_LOCAL = 512 << 10  # bytes of local memory that a thread has on a GPU
LOCAL_MEMORY = 64 << 20  # bytes of local memory of one batch
LEAST, MOST = 1024, 16384  # lanes of a batch
WRITES = ("st", "atom", "red")


@seldom()
def run(source: Path | str | Compiled | int | registry.Kernel, *, entry: str | None = None, grid: int | Sequence[int],
        block: int | Sequence[int], args: Sequence[Any], shared_bytes: int = 0, arch: str = "sm_90",
        macros: Mapping[str, int] | None = None, max_steps: int = 50_000_000, max_memory: int = 4 << 30,
        checks: bool = True, cluster: int = 1, include: Sequence[Path | str] = (),
        max_seconds: float | None = None, observer: Observer | None = None) -> Report:
    """Run one kernel on the CPU.

    Args:
        source: a ``.cu`` file (compiled for ``arch`` with ``macros``), a ``.ptx`` file, PTX text, PTX from
            `peakgemm.runtime.compile`, or a rung (its number or its entry in the table: the guarded
            compilation of its default config; `run_rung` chooses grid, block and arguments too).
        entry: the kernel; may be left out where there is one.
        grid: blocks along x, or (x, y, z).
        block: threads along x, or (x, y, z); at most 1024 in all.
        args: one per parameter. A NumPy array stands for its device memory and is updated in place (a strided view
            passes the address of its first element); None is a null pointer; Python and NumPy
            scalars are converted to the parameter's type; ``bytes`` or a structured scalar
            serves a struct, a `TensorMap` a ``CUtensorMap``.
        shared_bytes: dynamic shared memory per block, in bytes.
        arch: the architecture compiled for, whose limits hold.
        macros: ``#define`` of the compilation, by name.
        max_steps: instructions, counted once per group of lanes, after which the run is stopped.
        max_memory: bytes that the simulation may take, by estimate.
        checks: look for races, unwritten reads and overlapping writes; without it the first refused access ends the
            run. Accesses out of bounds are never carried out.
        cluster: blocks along x that form a cluster, 1 to 16, of a kernel that leaves this to the launch (on a GPU
            ``CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION``). One with ``.reqnctapercluster`` (``__cluster_dims__``) has the
            clusters that it asks for; 1, or the same number, is right for it.
        max_seconds: seconds after which the run is stopped; None: as long as it takes.
        include: folders in which a ``.cu`` file's headers are looked for, before those of CUDA.
        observer: is told of instructions and accesses (`peakgemm.tools.explore`); the run takes several times as long.

    Returns:
        The faults, the counts per instruction, and the totals.

    Raises:
        InvalidValue: malformed PTX, a missing entry, a wrong number of arguments, a value out of
            range, a launch beyond the architecture's limits, or too much memory.
        InvalidType: an argument that does not fit its parameter.
        UnknownInstruction: the kernel reached an instruction that cannot be simulated exactly; no array is changed.
        CompileFailed: the source does not compile.
    """
    if isinstance(source, (int, registry.Kernel)):
        ladder = source if isinstance(source, registry.Kernel) else registry.rung(source)
        config = ladder.config_for(arch)
        source = compile_for(ladder, config, Problem.contiguous(1, 1, 1), arch, "ptx")  # which depends on no problem
        shared_bytes = shared_bytes or (ladder.shared_bytes(config) if ladder.dynamic else 0)
    text, entry = ptx_of(source, entry, arch, macros, tuple(map(Path, include)))
    module, program = _program(text, entry)
    kernel = program.kernel
    launch = _Launch(module, program, _triple("grid", grid), _triple("block", block), arch, shared_bytes, cluster)
    arena, params, symbols = launch.memory(args)
    lanes = launch.lanes_per_batch(program)
    launch.check_memory(program, lanes, arena, checks, max_memory)
    arena.allocate()
    machine = Machine(program, launch.grid, launch.block, arena, params, symbols, launch.shared, launch.local, checks,
                      max_steps, launch.frames, architecture(arch).number, launch.maps, launch.cluster)
    if checks:
        sizes = [smallest_access(kernel, "shared", WRITES), *(tensor.size for tensor, _ in launch.maps)]
        machine.global_log = GlobalLog(machine, min(sizes))
    machine.spaces = {param.name: "param" for param in kernel.params}
    for one in (*module.variables.values(), *kernel.variables):
        machine.spaces[one.name] = "local" if one.space == "param" else one.space  # of a call: a place in the frame
    machine.observer = observer
    compile_kernel(Build(machine) if observer is None else observer.build(machine))
    if max_seconds is not None:
        if not max_seconds > 0:
            raise InvalidValue(f"max_seconds = {max_seconds} is not positive; pass the seconds that the run may take")
        machine.clock.start(max_seconds)
    started = time.perf_counter()
    per_batch = max(1, lanes // machine.padded)
    with machine.scratch.quiet():
        stopped = machine.run(per_batch, at_once=launch.alive(program, lanes))
    arena.copy_back()
    machine.finish_counts()
    return _report(machine, stopped, time.perf_counter() - started)


@lru_cache(maxsize=16)
def _program(text: str, entry: str | None) -> tuple[Module, Program]:
    """Parsed once for the runs of one kernel on several inputs; a run changes neither."""
    module = parse(text, display)
    return module, build(link(kernel_of(module, entry, "the PTX holds"), module))


def _triple(name: str, value: int | Sequence[int]) -> tuple[int, int, int]:
    items = [int(value)] if np.ndim(value) == 0 else [int(v) for v in value]  # type: ignore[arg-type, union-attr]
    if not 1 <= len(items) <= 3 or min(items) < 1:
        raise InvalidValue(f"{name} = {value!r} must be one to three positive integers")
    items += [1] * (3 - len(items))
    return items[0], items[1], items[2]


def _named(name: str, kernel: Kernel, besides: str = "") -> bool:
    """Whether an instruction of the kernel, ``besides`` aside, names a variable of its module or a parameter."""
    word = re.compile(rf"(?<![\w$]){re.escape(name)}(?![\w$])")
    return any(name in ins.text and ins.base != besides and word.search(ins.text) for ins in kernel.instructions)


def _cluster(kernel: Kernel, blocks: int, asked: int, arch: str) -> int:
    """How many of ``blocks`` along x a cluster has: what the kernel says, else what the launch has ``asked`` for."""
    if not 1 <= asked <= LARGEST_CLUSTER:
        raise InvalidValue(f"cluster = {asked} must be 1 to {LARGEST_CLUSTER}, the blocks that a GPU can run as one "
                           "cluster; pass 1 for none, or give fewer blocks more threads each")
    if kernel.cluster > 1 and asked not in (1, kernel.cluster):
        raise InvalidValue(f"cluster = {asked}, but kernel {kernel.name} was compiled for clusters of {kernel.cluster} "
                           "(.reqnctapercluster); leave cluster out, or compile it without")
    if asked > 1 and architecture(arch).number < 90:
        raise InvalidValue(f"cluster = {asked}, but {arch} has no clusters, sm_90 has; leave cluster out")
    cluster = max(kernel.cluster, asked)
    if blocks % cluster:
        who = f"kernel {kernel.name}" if kernel.cluster > 1 else "the launch"
        raise InvalidValue(f"grid.x = {blocks} is no multiple of the {cluster} blocks of a cluster that "
                           f"{who} asks for; launch whole clusters")
    return cluster


class _Launch:
    """The shape of a launch and the memory that it needs."""

    def __init__(self, module: Module, program: Program, grid: tuple[int, int, int], block: tuple[int, int, int],
                 arch: str, shared_bytes: int, cluster: int) -> None:
        kernel = program.kernel
        self.module, self.kernel, self.grid, self.block = module, kernel, grid, block
        limits = architecture(arch)
        self.cluster = _cluster(kernel, grid[0], cluster, arch)
        threads = block[0] * block[1] * block[2]
        most = min(limits.threads_per_block, kernel.max_threads or limits.threads_per_block)
        if threads > most:
            why = "its __launch_bounds__" if most < limits.threads_per_block else arch
            raise InvalidValue(f"block {block} has {threads} threads, {why} allows {most}; use a smaller block")
        for axis, size, limit in zip("xyz", grid, (2**31 - 1, 65535, 65535), strict=False):
            if size > limit:
                raise InvalidValue(f"grid.{axis} = {size} exceeds {limit}; put the longer dimension on x")
        if shared_bytes < 0:
            raise InvalidValue(f"shared_bytes = {shared_bytes} is negative; pass the bytes of dynamic shared memory")
        self.threads = threads
        self.padded = -(-threads // 32) * 32
        self.symbols: dict[str, int] = {"%dynamic": shared_bytes}
        variables = [*module.variables.values(), *kernel.variables]
        self.shared = self._stack([v for v in variables if v.space == "shared" and not v.dynamic and
                                   (v in kernel.variables or _named(v.name, kernel))], 0)
        if self.shared > limits.static_shared:
            raise InvalidValue(f"kernel {kernel.name} declares {self.shared} bytes of static shared memory, the limit "
                               f"is {limits.static_shared}; declare it extern and pass shared_bytes")
        start = self.shared
        for variable in variables:
            if variable.space == "shared" and variable.dynamic:
                start = -(-self.shared // max(variable.align, 1)) * max(variable.align, 1)
                self.symbols[variable.name] = start
        self.shared = start + shared_bytes if shared_bytes else self.shared
        if self.shared > limits.shared_per_block:
            raise InvalidValue(f"the launch asks for {self.shared} bytes of shared memory per block, {arch} has "
                               f"{limits.shared_per_block}; use fewer stages or a smaller tile")
        self.frames = Frames(program, self._stack([v for v in variables if v.space in ("local", "param")], 0))
        self.local = self.frames.total
        if self.local > MOST_LOCAL:
            raise InvalidValue(f"kernel {kernel.name} needs {self.local:,} bytes of local memory per thread, a GPU has "
                               f"{MOST_LOCAL:,}; use smaller local arrays")
        for number, name in enumerate(kernel.linked):
            self.symbols[name] = address_of_function(number)

    def _stack(self, variables: Sequence[Any], start: int) -> int:
        for variable in variables:
            start = -(-start // variable.align) * variable.align
            self.symbols[variable.name] = start
            start += variable.size
        return start

    def memory(self, args: Sequence[Any]) -> tuple[Arena, dict[str, bytes], dict[str, int]]:
        """Reserve the arrays and variables; parameters as bytes, symbols as addresses."""
        params = self.kernel.params
        if len(args) != len(params):
            shown = ", ".join(f"{p.name} .{p.type}" for p in params)
            raise InvalidValue(f"kernel {self.kernel.name} takes {len(params)} arguments ({shown}), {len(args)} were "
                               "given; pass one per parameter")
        arena = Arena()
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        self.maps: list[tuple[TensorMap, int]] = []
        for number, (arg, param) in enumerate(zip(args, params, strict=False)):
            if isinstance(arg, TensorMap):
                arrays[f"argument {number}"] = arg.array
            elif isinstance(arg, np.ndarray) and not (arg.ndim == 0 and param.type != "u64"):
                if param.type not in ("u64", "b64", "s64"):
                    raise InvalidType(f"argument {number} ({param.name}) is an array, its parameter is a .{param.type} "
                                      "scalar; pass a number")
                arrays[f"argument {number}"] = arg
        addresses = arena.place(arrays)
        initialised: list[tuple[Segment, Variable]] = []
        for variable in (*self.module.variables.values(), *self.kernel.variables):
            if variable.space in ("global", "const"):
                segment = arena.reserve(variable.size, f"variable {variable.name}", variable.align, 0,
                                        variable.space == "global", None)
                segment.space, self.symbols[variable.name] = variable.space, segment.base
                initialised.append((segment, variable))
        for segment, variable in initialised:
            segment.host = np.frombuffer(referring(variable, self.symbols), np.uint8)
        blobs = {}
        for number, (arg, param) in enumerate(zip(args, params, strict=False)):
            if param.size > MOST_PARAMETERS:
                raise InvalidValue(f"parameter {param.name} has {param.size:,} bytes, a kernel takes at most "
                                   f"{MOST_PARAMETERS:,}; pass an array")
            address = addresses.get(f"argument {number}")
            if isinstance(arg, TensorMap) and address is not None:
                blobs[param.name] = self._map(number, arg, param, address)
            else:
                blobs[param.name] = _convert(number, arg, param) if address is None else address.to_bytes(8, "little")
            if param.type == "b8" or param.size > 8 or _named(param.name, self.kernel, "ld"):  # it has an address
                segment = arena.reserve(param.size, f"parameter {param.name}", writable=False)
                segment.host, segment.space = np.frombuffer(blobs[param.name], np.uint8), "param"
                self.symbols[param.name] = segment.base
        return arena, blobs, self.symbols

    def _map(self, number: int, arg: TensorMap, param: Param, address: int) -> bytes:
        """The bytes of a tensor map, which the run will know by them."""
        what = f"argument {number} ({param.name}, .{param.type})"
        if param.size != TENSOR_MAP:
            raise InvalidType(f"{what} takes {param.size} bytes, a TensorMap {TENSOR_MAP}; declare the parameter const "
                              "__grid_constant__ CUtensorMap")
        if address % 16:
            raise InvalidValue(f"{what}: the tensor begins {address % 16} bytes past a multiple of 16; move its start")
        self.maps.append((arg, address))
        return arg.encode(len(self.maps) - 1)

    def lanes_per_batch(self, program: Program) -> int:
        """How many lanes run together: as many as keep the register rows in the cache."""
        each = sum(program.slots[kind] * size for kind, size in (("p", 1), ("h", 2), ("r", 4), ("d", 8)))
        lanes = min(max(CACHE // max(each, 1), LEAST), MOST)
        blocks = max(1, lanes // self.padded)
        if self.shared:
            blocks = max(1, min(blocks, SHARED_CACHE // self.shared))
        if self.local:
            blocks = max(1, min(blocks, LOCAL_MEMORY // (self.local * self.padded)))
        return max(blocks // self.cluster, 1) * self.cluster * self.padded

    def _batch_bytes(self, program: Program, lanes: int) -> int:
        each = sum(program.slots[kind] * size for kind, size in (("p", 1), ("h", 2), ("r", 4), ("d", 8)))
        unit = smallest_access(self.kernel, "global", ("ld", "st", "atom", "red"))
        asynchronous = any(ins.has("mma_async", "bulk_group") for ins in self.kernel.instructions)
        logged = 72 + 8 * (self.threads // 128 + 1) * asynchronous
        return lanes * (2 * each + self.local + 1024) + lanes // self.padded * self.shared * (2 + logged // unit)

    def check_memory(self, program: Program, lanes: int, arena: Arena, checks: bool, limit: int) -> None:
        """Refuse a run whose estimate exceeds the limit."""
        owners = 24 / smallest_access(self.kernel, "shared", WRITES) if checks else 0
        estimate = int(arena.size * (2 + owners)) + self._batch_bytes(program, lanes)
        if estimate > limit:
            raise InvalidValue(f"the simulation needs about {estimate:,} bytes, max_memory allows {limit:,}; pass "
                               "smaller arrays, or raise max_memory")
        self.spare = limit - estimate

    def alive(self, program: Program, lanes: int) -> int:
        """How many batches may be alive at once, for blocks that wait for other blocks."""
        return 1 + max(0, min(63, self.spare // self._batch_bytes(program, lanes)))


def _convert(number: int, arg: Any, param: Param) -> bytes:
    """A scalar argument as the bytes of its parameter."""
    what = f"argument {number} ({param.name}, .{param.type})"
    if isinstance(arg, (bytes, np.void)):
        blob = bytes(arg) if isinstance(arg, bytes) else arg.tobytes()
        if len(blob) != param.size:
            raise InvalidValue(f"{what} takes {param.size} bytes, {len(blob)} were given")
        return blob
    if arg is None:
        if param.size != 8:
            raise InvalidType(f"{what} is not a pointer, None was given; pass a number")
        return bytes(8)
    if isinstance(arg, np.ndarray) and arg.ndim == 0:
        arg = arg[()]
    if not isinstance(arg, (int, float, bool, np.number, np.bool_)) or isinstance(arg, np.complexfloating):
        raise InvalidType(f"{what} got a {type(arg).__name__}; pass a number, a NumPy array, None or bytes")
    if param.type in ("f32", "f64", "f16"):
        dtype = np.dtype({"f32": "f4", "f64": "f8", "f16": "f2"}[param.type])
        try:
            with np.errstate(over="ignore"):  # to infinity, as in C++
                return bytes(np.array(arg, dtype).tobytes())
        except OverflowError:
            raise InvalidValue(f"{what} is too large for a float; pass a smaller number") from None
    if isinstance(arg, np.float16) and param.size == 2 and param.type in ("b8", "b16"):  # a __half by value
        return arg.tobytes()
    if isinstance(arg, np.uint16) and param.size == 2 and param.type == "b8":  # the bits of a __nv_bfloat16
        return arg.tobytes()
    if isinstance(arg, (float, np.floating)):
        # newer compilers type float parameters as plain bits
        if param.type == "b32":
            return bytes(np.float32(arg).tobytes())
        if param.type == "b64":
            return bytes(np.float64(arg).tobytes())
        if param.type != "b8":
            raise InvalidType(f"{what} is an integer, {arg!r} was given; pass an int")
    if param.size > 8 or (param.type == "b8" and param.size != 1):
        half = f"np.float16({arg!r}) for a __half, or " if param.size == 2 else ""
        raise InvalidType(f"{what} is a struct of {param.size} bytes, {arg!r} was given; pass {half}bytes")
    value, bits = int(arg), 8 * param.size
    if not -(1 << bits - 1) <= value < 1 << bits:
        raise InvalidValue(f"{what} = {value} does not fit {bits} bits; pass a smaller number")
    return (value & (1 << bits) - 1).to_bytes(param.size, "little")


def _report(machine: Machine, stopped: str, seconds: float) -> Report:
    kernel = machine.program.kernel
    items = machine.counts
    hot = sorted(items, key=lambda item: -item.threads)[:3]
    faults = sorted(machine.faults.values(), key=lambda fault: fault.ptx_line)
    if ("max_steps" in stopped or "max_seconds" in stopped) and items:
        seen: dict[tuple[str, int], int] = {}
        for item in items:
            seen[item.file, item.line] = seen.get((item.file, item.line), 0) + item.executions
        ranking = sorted(seen.items(), key=lambda pair: -pair[1])[:3]
        lines = ", ".join(f"{file}:{line} ({count:,})" for (file, line), count in ranking)
        faults.append(Fault("never_ending", f"{stopped}; the lines executed most, with warp executions: {lines}",
                            kernel.name, hot[0].file, hot[0].line, hot[0].ptx_line, hot[0].text, []))
    return Report(kernel.name, faults, totals(items), items, stopped, machine.steps, seconds,
                  [(item.file, item.line, item.executions) for item in hot], "".join(machine.printed))
