"""The CUDA sources and the table of them."""
