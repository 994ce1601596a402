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
    """NVRTC or ptxas refused a source; the message carries their log."""


class LaunchFailed(PeakgemmError, RuntimeError):
    """The driver refused to load or to launch a kernel."""
