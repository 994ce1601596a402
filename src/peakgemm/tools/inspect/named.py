"""Rungs and kernels of the library, by name, configuration or shape, compiled to look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...errors import InvalidValue
from ...kernels import validity
from ...kernels.emulated.product import product_on
from ...kernels.emulated.schemes import SCHEMES
from ...kernels.library import KERNELS, compile_for, kernel_named
from ...kernels.patched import REBUILT
from ...kernels.registry import LADDER, Kernel, numbers, rungs
from ...problem import Config, Problem
from ...runtime.architectures import Architecture, architecture
from ...runtime.compile import Compiled
from ...sass.elf import Cubin
from ...selection.choose import candidates, chains, choose
from ...selection.machine import machine
from ..bench.suites import Case, cases
from .subject import Subject

MATMUL = "matmul"
_ALIGNED = Problem.contiguous(4096, 4096, 4096)


def family_names() -> tuple[str, ...]:
    """The kernels of the library that may be named, and `MATMUL`, which asks for what runs."""
    return (MATMUL, *(kernel.name for kernel in KERNELS), *SCHEMES)


def named(what: str, arch: str, config: str = "", shape: str = "", precision: str = "ieee",
          sm_count: int | None = None) -> Subject:
    """The rung or kernel of the library called ``what``, compiled for ``arch``.

    ``config`` is a configuration's label, ``shape`` (``MxNxK[:layout][*batch]``) asks for what runs for it on
    ``sm_count`` SMs (the reference GPU's). Without both: the default configuration, for aligned operands.

    Raises:
        InvalidValue: no such kernel, configuration or shape.
        CompileFailed, MissingComponent: see `runtime.compile`.
    """
    limits = architecture(arch)
    case = _case(shape) if shape else None
    problem = case.problem()[0] if case else _ALIGNED  # without a shape, aligned operands
    if what in family_names():
        return _of_library(what, limits, config, shape, problem, precision, sm_count or limits.gpu_sms)
    if precision != "ieee":
        raise InvalidValue(f"precision {precision!r}: for {MATMUL} and the library's kernels; {what!r} is a rung")
    if not any(what == one.name or what == one.name.replace("_", "-") for one in LADDER) and not what.isdecimal():
        raise InvalidValue(f"{what!r} is no rung ({numbers()}, or a name such as warp_tile), no kernel of "
                           f"the library ({', '.join(family_names())}) and no .cubin, .ptx or .cu file")
    (kernel,) = rungs(what)
    return _rung(kernel, limits, config, problem)


def _rung(kernel: Kernel, limits: Architecture, config: str, problem: Problem) -> Subject:
    _refuse_lacking(kernel, limits)
    default = kernel.config_for(limits.name)
    chosen = _labelled(kernel, {**dict(kernel.named), default.label(): default}, config) if config else default
    chosen = validity.choose(kernel, chosen, limits, problem)
    compiled = compile_for(kernel, chosen, problem, limits.name)
    subject = _subject(kernel, chosen, limits, compiled, f"rung {kernel.label}", "rung")
    if not compiled.note:
        return subject
    notes = [f"{compiled.note[:1].upper()}{compiled.note[1:]}."]
    if compiled.note.startswith(REBUILT):
        notes.append("Source lines within its loop are those of the compiler's code, which stood there.")
    return replace(subject, notes=tuple(notes))


def _case(shape: str) -> Case:
    named_cases = cases(shape)
    if len(named_cases) != 1:
        raise InvalidValue(f"--shape {shape} names {len(named_cases)} products; name one")
    return named_cases[0]


def _refuse_lacking(kernel: Kernel, limits: Architecture) -> None:
    if (lacking := kernel.lacks(limits)) is not None:
        raise InvalidValue(f"{kernel.label} cannot be compiled for {limits.name}: {lacking}")


def _labelled(kernel: Kernel, configs: Mapping[str, Config], label: str) -> Config:
    if label not in configs:
        raise InvalidValue(f"{kernel.label} has no configuration {label!r}; it has {', '.join(configs)}")
    return configs[label]


def _of_library(what: str, limits: Architecture, config: str, shape: str, problem: Problem, precision: str,
                sm_count: int) -> Subject:
    if what == MATMUL and not shape:
        raise InvalidValue(f"{MATMUL}: which kernel runs depends on the product; add --shape MxNxK[:layout][*batch]")
    if what in SCHEMES and not limits.has_cp_async:
        raise InvalidValue(f"{what} needs sm_80 or later, not {limits.name}")
    reason = ""
    if what == MATMUL or (what in SCHEMES and shape):
        choice = choose(problem, limits.name, sm_count, "", precision if what == MATMUL else what)
        kernel, cut, reason = choice.kernel, choice.config, f"{choice.reason}." if what == MATMUL else ""
    elif what in SCHEMES:
        kernel, cut = product_on(SCHEMES[what], limits)
    else:
        kernel, cut = _tile(what, limits, config, shape, problem, sm_count)
    if config and cut.label() != config:
        raise InvalidValue(f"--config {config!r} is not the configuration of {what}: {cut.label()}")
    compiled = compile_for(kernel, cut, problem, limits.name)
    subject = _subject(kernel, cut, limits, compiled, kernel.label, "library")
    return replace(subject, notes=(reason,)) if reason else subject


def _tile(name: str, limits: Architecture, config: str, shape: str, problem: Problem,
          sm_count: int) -> tuple[Kernel, Config]:
    """A family's configuration of that label, its best for the shape, or its default."""
    family = kernel_named(name)
    _refuse_lacking(family, limits)
    if shape:
        gpu = machine(limits.name, sm_count)
        # Some are for reproducible products alone.
        for kernel, cut, _ in (*candidates(problem, gpu), *chains(problem, gpu)):
            if kernel == family and config in ("", cut.label()):
                return kernel, cut
        raise InvalidValue(f"{family.label} is no candidate for {shape} on {limits.name}"
                           + (f" with the configuration {config}" if config else "")
                           + f"; see: {MATMUL} --shape {shape}")
    default = [family.default] if validity.is_valid(family, family.default, limits) else []
    known = [*default, *family.family.configs(family, machine(limits.name, limits.gpu_sms))]
    if not known:
        raise InvalidValue(f"{family.label} has no configuration by itself on {limits.name}; add --shape MxNxK")
    labelled: dict[str, Config] = {}
    for cut in known:
        labelled.setdefault(cut.label(), cut)
    return family, _labelled(family, labelled, config) if config else known[0]


def _subject(kernel: Kernel, config: Config, limits: Architecture, compiled: Compiled, label: str,
             kind: str) -> Subject:
    cubin = Cubin.read(compiled.code)
    dynamic = kernel.shared_bytes(config) if kernel.dynamic else 0
    return Subject(f"{label}, {config.label()}, on {limits.name}", kind, cubin, compiled.entry, limits.name, config,
                   kernel, config.block_threads, dynamic, compiled.spill_bytes, kernel.path)
