"""Typed errors. Every message names the value, the limit and the remedy."""

from __future__ import annotations


class PeakgemmError(Exception):
    """Base of every error that peakgemm raises on purpose.

    The command line turns it into one message and exit code 2.
    """


class InvalidValue(PeakgemmError, ValueError):
    """A shape, leading dimension, tile, rung or architecture that is not valid."""


class InvalidType(PeakgemmError, TypeError):
    """An argument of the wrong type, or an array of the wrong dtype."""


class MissingComponent(PeakgemmError, RuntimeError):
    """Something outside peakgemm is missing or too old: driver, NVRTC, disassembler, GPU."""


class CompileFailed(PeakgemmError, RuntimeError):
    """NVRTC, nvcc or ptxas refused a source; the message carries their log."""


class LaunchFailed(PeakgemmError, RuntimeError):
    """The driver refused to load or to launch a kernel."""


class WrongProduct(PeakgemmError, ArithmeticError):
    """A certificate found a product wrong; the message says which rows and columns, and who asked for it."""


class OutOfMemory(PeakgemmError, RuntimeError, MemoryError):
    """The device has no room for what a product needs beside its arrays; the message says how many bytes.

    See `out_of_memory_as`: what catches the array library's own error catches it too.
    """


def out_of_memory_as(kind: type[Exception]) -> type[OutOfMemory]:
    """`OutOfMemory` that is a ``kind`` as well: a caller's ``except torch.OutOfMemoryError`` goes on to hold."""
    return type("OutOfMemory", (OutOfMemory, kind), {})
