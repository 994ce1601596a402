"""From times to a profile: the numbers of the models fitted to them, and what the models then err and lose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from math import exp, log
from statistics import median
from typing import Any

import numpy as np

from lab.profile import least_squares
from lab.profile.least_squares import Rows, Vector
from lab.profile.rows import Path, Row, changed, estimate_us, get, moves, numbers_of, row
from lab.profile.times import Timed, TimedProduct
from peakgemm.errors import InvalidValue
from peakgemm.kernels.emulated.schemes import SCHEMES
from peakgemm.kernels.ffma.chain import CHAIN
from peakgemm.kernels.profile import Device, Machine, Profile
from peakgemm.runtime.device import Gpu
from peakgemm.selection.choose import candidates
from peakgemm.selection.machine import machine_with, profile_of
from peakgemm.selection.profile_file import allowed

HELD_OUT = 5  # one product in so many is fitted to nothing
LEAST = 10     # products
_SIGNED = frozenset({"reduce_us", "ranges_us"})  # differences of latencies: they may be below zero
_FURTHEST_US, _FURTHEST = 2.0, log(8)  # from where a number starts: of differences, and of the logarithm of others
_PEAK = 1.1  # of the FP32 peak: boost clocks exceed the nominal one
_DIGITS = 4
_BETTER = 0.001  # of the mean loss: less is noise
_WORTH = tuple(round(0.8 + 0.005 * i, 3) for i in range(41))
_LEAST_K = 64, 96, 128, 192, 256, 384, 512
_GAIN = 1.02  # over IEEE, in the mean of all products that were timed: below that tensor cores are not worth their test


def made(timed: Sequence[TimedProduct], gpu: Gpu, name: str, source: str, command: str) -> Profile:
    """A profile of ``gpu``, begun from the shipped one that it gets, of whose GPUs' names it takes the place.

    Raises:
        InvalidValue: fewer products than tell anything.
    """
    if len(timed) < LEAST:
        raise InvalidValue(f"{len(timed)} products were timed, a profile wants {LEAST} at least; give more --minutes")
    prior = profile_of(gpu.arch, gpu.name, own=False)
    device = Device(gpu.clock_mhz, gpu.bandwidth_gbs, gpu.l2_bytes)
    profile = fitted(timed, machine_with(replace(prior, device=device), gpu.arch, gpu.sm_count))
    return replace(profile, name=name, gpus=prior.gpus or (gpu.name,), architecture=gpu.arch, source=source,
                   date=date.today().isoformat(), command=command)


def fitted(timed: Sequence[TimedProduct], gpu: Machine) -> Profile:
    """The profile of ``gpu`` fitted to four products of five, and its residuals on the fifth.

    A model that errs less need not choose better. Numbers of a group go back to where they began, if the choices for
    the products that were fitted to lose less with those; ``residuals`` names such groups.
    """
    training = [one for i, one in enumerate(timed) if i % HELD_OUT]
    rows = [found for one in training for found in _rows(one, gpu)]
    prior, now = gpu.profile, gpu
    # Tiles first: others share their bandwidth and their launch.
    groups = sorted(dict.fromkeys(one.group for one in rows), key=lambda group: (group != "tiled", group))
    for group in groups:
        now = _refitted(group, [one for one in rows if one.group == group], now)
    begun, lost = [], _lost(training, now)
    for group in groups:
        back = _with(now, _returned(group, now.profile, prior))
        if (less := _lost(training, back)) < lost - _BETTER:
            now, lost = back, less
            begun.append(group)
    now = _with(now, _tensor_cores(training, now))
    return replace(now.profile, residuals={**residuals(timed, now), "not_fitted": begun})


def _returned(group: str, profile: Profile, prior: Profile) -> Profile:
    """``profile`` with a group's numbers as they were."""
    for path in numbers_of(group, prior):
        profile = changed(profile, path, get(prior, path))
    return profile


def _lost(timed: Sequence[TimedProduct], gpu: Machine) -> float:
    """Mean logarithm of what choices lose, of IEEE kernels and of those for tensor cores."""
    found = [log(choice(one, gpu, tensor)[0].us / min(row.us for row in some)) for one in timed
             for tensor in (False, True) if (some := _some(one, tensor))]
    return sum(found) / len(found)


def _rows(one: TimedProduct, gpu: Machine) -> list[Row]:
    """A product's rows, those far from its fastest of less weight."""
    found = []
    for same in (_some(one, False), _some(one, True), [each for each in one.rows if each.kernel is CHAIN]):
        for each in same:
            near = min(other.us for other in same) / each.us
            found.append(row(one.problem, each.kernel, each.config, each.us, near**2, gpu))
    return [each for each in found if each is not None]


def _refitted(group: str, rows: Sequence[Row], gpu: Machine) -> Machine:
    paths = [path for path in numbers_of(group, gpu.profile) if any(moves(path, one) for one in rows)]
    measured = np.log([one.us for one in rows])

    def errors(at: Vector, which: Rows) -> Vector:
        moved = _with(gpu, _moved(gpu.profile, paths, at))
        model = [log(max(estimate_us(rows[i], moved), 1e-3)) for i in which]
        return np.array(model) - measured[list(which)]

    touched = [[i for i, one in enumerate(rows) if moves(path, one)] for path in paths]
    low, high = np.array([_limits(gpu.profile, path) for path in paths]).T
    at = least_squares.fit(errors, touched, low, high, np.array([one.weight for one in rows]))
    return _with(gpu, _moved(gpu.profile, paths, at, _DIGITS))


def _is_difference(value: float, path: Path) -> bool:
    return value <= 0 or path[-1] in _SIGNED


def _limits(profile: Profile, path: Path) -> tuple[float, float]:
    value, name = get(profile, path), str(path[-1])
    if _is_difference(value, path):
        return (-_FURTHEST_US if name in _SIGNED else 0.0), _FURTHEST_US
    least, most = allowed(name)
    if name in ("share", "words_share"):
        most = _PEAK
    return max(-_FURTHEST, log(max(least, 1e-9) / value)), min(_FURTHEST, log(most / value))


def _moved(profile: Profile, paths: Sequence[Path], at: Vector, digits: int = 0) -> Profile:
    """``profile`` with numbers moved: differences by microseconds, others by the logarithm."""
    for path, by in zip(paths, at, strict=True):
        if by or digits:
            before = get(profile, path)
            value = before + float(by) if _is_difference(before, path) else before * exp(float(by))
            profile = changed(profile, path, float(f"{value:.{digits}g}") if digits else value)
    return profile


def _with(gpu: Machine, profile: Profile) -> Machine:
    return replace(gpu, profile=profile)


def _tensor_cores(timed: Sequence[TimedProduct], gpu: Machine) -> Profile:
    """Whether and from what K on "emulated" takes tensor cores, and by how much they must be faster by the model.

    What loses least over the products that were timed both ways; nothing, where that gains less than 2 % of IEEE.
    """
    both = [(one.problem.k, *_modelled_both(one, gpu)) for one in timed if _some(one, True) and _some(one, False)]
    numbers = gpu.profile.emulated

    def gained(worth: float, least_k: int) -> float:  # mean logarithm of the speed-up over IEEE
        return sum(log(ieee.us / tensor.us) for k, ieee, ieee_us, tensor, tensor_us in both
                   if tensor_us < worth * ieee_us and k >= least_k) / max(len(both), 1)

    worth, least_k = max(((worth, k) for k in _LEAST_K for worth in _WORTH), key=lambda one: gained(*one))
    wins = gained(worth, least_k) >= log(_GAIN)
    return replace(gpu.profile, emulated=replace(numbers, worth_share=worth if wins else None, least_k=least_k))


def _modelled_both(one: TimedProduct, gpu: Machine) -> tuple[Timed, float, Timed, float]:
    """What the models choose of the timed IEEE kernels and of those for tensor cores, and their microseconds."""
    return (*choice(one, gpu, False), *choice(one, gpu, True))


def _some(one: TimedProduct, tensor: bool) -> list[Timed]:
    """What the choices are among: the kernel for reproducible products is timed for its numbers alone."""
    return [row for row in one.rows
            if (row.kernel.family.scheme is not None) == tensor and row.kernel is not CHAIN]


def choice(one: TimedProduct, gpu: Machine, tensor: bool) -> tuple[Timed, float]:
    """Of the kernels that were timed the one that the models name first, and their microseconds."""
    timed = {(row.kernel, row.config): row for row in _some(one, tensor)}
    for kernel, config, us in candidates(one.problem, gpu, SCHEMES["fp16x3"] if tensor else None):
        if (kernel, config) in timed:
            return timed[kernel, config], us
    first = next(iter(timed.values()))  # all of an older profile's tiles
    return first, first.us


def residuals(timed: Sequence[TimedProduct], gpu: Machine) -> dict[str, Any]:
    """What the models of ``gpu`` err and their choices lose, median and 90th percentile, over the products held out.

    ``model_error``: of modelled over measured, less 1, of all rows. ``choice_loss``: of what is chosen over the fastest
    that was timed, less 1.
    """
    held = [one for i, one in enumerate(timed) if i % HELD_OUT == 0]
    found: dict[str, Any] = {"products": len(timed), "held_out": len(held), "times": sum(len(x.rows) for x in timed)}
    for name, tensor in (("ieee", False), ("emulated", True)):
        some = [one for one in held if _some(one, tensor)]
        if some:
            errors = [abs(estimate_us(each, gpu) / each.us - 1) for one in some for each in _rows(one, gpu)
                      if (each.group == "emulated") == tensor]
            losses = [choice(one, gpu, tensor)[0].us / min(row.us for row in _some(one, tensor)) - 1 for one in some]
            found[name] = {"model_error": spread(errors), "choice_loss": spread(losses)}
    return found


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and 90th percentile, to four decimals."""
    return {"median": round(median(values), 4), "p90": round(sorted(values)[int(0.9 * (len(values) - 1) + 0.5)], 4)}
