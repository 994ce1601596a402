"""Kernels of linear algebra: what is left where products do the rest."""
