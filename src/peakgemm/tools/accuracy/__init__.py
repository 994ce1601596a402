"""How accurate an FP32 GEMM is: tests, data and demands that any ``(a, b) -> c`` can be put to (`suite.judge`)."""

from .suite import Report, judge

__all__ = ["Report", "judge"]
