"""A rung with texts of its source replaced, simulated: what the checks say of what was forgotten."""

import numpy as np

from peakgemm.kernels.validity import choose
from peakgemm.problem import Problem
from peakgemm.runtime.architectures import architecture
from peakgemm.runtime.compile import compile_source
from peakgemm.tools.simulator import run
from peakgemm.tools.simulator.library import tensor_map
from rung_code import arguments, launch


def window(draw, rows, columns, ld, fill):
    """A rows x columns view, its first element on a multiple of 16 bytes if ``ld`` is of 4, among ``fill``."""
    whole = np.full((rows + 2, ld), fill, np.float32)
    inside = whole[1:rows + 1, :columns]
    inside[:] = draw.standard_normal((rows, columns))
    return whole, inside


def changed(rung, edits, a, b, *, aligned=True):
    """Kinds of fault, and the product, of ``rung`` on ``a`` and ``b`` with each (old, new) of ``edits`` replaced."""
    problem = Problem.contiguous(len(a), b.shape[1], len(b))
    text = rung.source
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    config = rung.config_for("sm_90")
    if aligned:
        config = choose(rung, config, architecture("sm_90"), problem)
    made = launch(rung, config, problem)
    code = compile_source(text, rung.entry, "sm_90a", config.macros(), "ptx", "changed.cu")
    c = np.full((problem.m, problem.n), np.nan, np.float32)
    report = run(code, grid=made.blocks, block=made.threads, arch="sm_90", shared_bytes=made.shared_bytes,
                 args=[a, b, c, *arguments(made), *(tensor_map(box, (a, b)[box.operand]) for box in made.boxes)])
    return {fault.kind for fault in report.faults}, c
