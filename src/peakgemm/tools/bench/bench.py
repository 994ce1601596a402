"""What the library runs for each case of the suites: checked against FP64, then timed against cuBLAS and others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ...runtime.device import Gpu
from ...selection.choose import Choice, choose
from .contenders import Contender
from .errors import bound
from .peers import Peer
from .products import AgainstCublas, Row, ours
from .records import first_line
from .roofline import is_memory_bound
from .suites import Case
from .timer import Comparison, Timer
from .variants import IEEE, Variant

LEAST_ENERGY_S = 0.25  # NVML's counter moves up to ten times a second
# In eps |A||B|, of operands in two parts of 11 bits (FP16, TF32): 1 an operand, 2 for the product of the low parts.
SPLIT_ERROR = 4.0


def choice_for(case: Case, arch: str, sm_count: int, device_name: str, precision: str = IEEE.precision) -> Choice:
    """What `peakgemm.matmul` runs for packed arrays of the case.

    Raises:
        InvalidValue: ``arch`` has no kernel for that precision.
    """
    return choose(case.problem()[0], arch, sm_count, device_name, precision)


def static_row(suite: str, case: Case, choice: Choice, variant: Variant = IEEE) -> Row:
    """The fields of a row that need no GPU."""
    return {"suite": suite, "name": case.name, "shape": [case.m, case.n, case.k], "layout": case.layout,
            "batch": case.batch, **variant.fields(), "kernel": choice.kernel.name, "config": choice.config.to_json(),
            "source": choice.source}


def bound_of(case: Case, variant: Variant = IEEE) -> float:
    """The largest componentwise error, in eps |A||B|, that a product without a fault can have: that of multiply-adds,
    and where operands are split, what the splitting leaves out besides. How accurate a precision is, the accuracy suite
    says."""
    return bound(case.k) + (0.0 if variant.precision == IEEE.precision else SPLIT_ERROR)


@dataclass(frozen=True, slots=True)
class Bench:
    """Cases on one GPU: cuBLAS, the contenders and the copy bandwidth that all rows are compared with; ``seconds`` of
    pairs a row."""

    gpu: Gpu
    peer: Peer
    timer: Timer
    contenders: Sequence[Contender]
    copy_gbs: float
    seconds: float

    def measure(self, case: Case, choice: Choice, variant: Variant = IEEE) -> Row:
        """Errors, interleaved times, energy, bandwidth where the memory bounds it, and the contenders; ``error``
        in place of them where the product failed or is wrong."""
        try:
            return self._measured(case, choice, variant)
        except Exception as error:  # whatever a driver, an allocator or a library raises: the others still run
            return {"error": first_line(error)}

    def _measured(self, case: Case, choice: Choice, variant: Variant) -> Row:
        against = AgainstCublas(case, self.gpu, self.peer, self.timer)
        facts, make = ours(choice, variant, against.arrays, self.gpu, self.peer)
        error, reference_error = against.errors(make, against.by_cublas)
        row: Row = {**facts, "max_error": error, "reference_error": reference_error}
        limit = bound_of(case, variant)
        if not error <= limit:
            return {**row, "error": f"wrong product: {error:.3g} eps |A||B|, {limit:g} at most"}
        works = against.works(make)
        compared = against.compare(works)
        row |= {"backend": "gpu", "operand_sets": len(works), **compared.to_json(case.flops),
                **self._bandwidth(case, compared)}
        window = max(self.seconds / 2, LEAST_ENERGY_S)
        for name, each in (("pj_per_flop", works), ("cublas_pj_per_flop", against.cublas)):
            joules = self.timer.energy(each, window, capture=self.peer.captures_cublas)
            row[name] = None if joules is None else joules / case.flops * 1e12
        row["peers"] = {}
        for contender in self.contenders:
            try:
                row["peers"][contender.name] = self._contended(contender, case, against)
            except Exception as failure:
                row["peers"][contender.name] = {"error": first_line(failure)}
        return row

    def _bandwidth(self, case: Case, compared: Comparison) -> Row:
        if not is_memory_bound(case, self.gpu):
            return {"gbs": None, "share_of_copy": None}
        gbs = case.bytes / median(compared.ours_ms) / 1e6
        return {"gbs": gbs, "share_of_copy": gbs / self.copy_gbs}

    def _contended(self, contender: Contender, case: Case, against: AgainstCublas) -> Row:
        (error,) = against.errors(contender.work)
        if not error <= bound_of(case):
            return {"max_error": error, "error": f"wrong product: {error:.3g} eps |A||B|"}
        compared = against.compare(against.works(contender.work), contender.capture).to_json(case.flops)
        samples = compared["samples_ms"]
        return {"max_error": error, **{name: compared[name] for name in ("mode", "tflops", "ratio_to_cublas",
                                                                         "ratio_spread")},
                "samples_ms": {"theirs": samples["ours"], "cublas": samples["cublas"]}}


def rows(groups: Mapping[str, Sequence[Case]], variants: Sequence[Variant], arch: str, sm_count: int, device_name: str,
         bench: Bench | None, done: Callable[[str], None]) -> Iterator[Row]:
    """A row for each case and variant, a case's next to each other; measured with ``bench``, else the choice alone."""
    for suite, cases in groups.items():
        for case in cases:
            for variant in variants:
                choice = choice_for(case, arch, sm_count, device_name, variant.precision)
                row = static_row(suite, case, choice, variant)
                yield row if bench is None else {**row, **bench.measure(case, choice, variant)}
                done(f"{case.name}: {variant.label}")
