"""Kernels of FFMA instructions: a ``.cu`` and a ``.py`` of the same name a family."""
