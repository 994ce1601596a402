"""peakgemm: FP32 matrix multiplication on NVIDIA GPUs, from the naive kernel to past the FP32 peak."""

__version__ = "0.1.0"
