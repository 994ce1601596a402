"""Kernels that compute FP32 products on tensor cores."""
