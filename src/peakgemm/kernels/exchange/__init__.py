"""Kernels that bring together what the GPUs of one host have, by stores into each other's memory."""
