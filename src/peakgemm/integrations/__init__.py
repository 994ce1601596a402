"""Thin, optional adapters to other libraries; importing them imports nothing heavy."""

from ..errors import MissingComponent


def missing(what: str, library: str, error: ImportError) -> MissingComponent:
    """What ``what`` raises where its library cannot be imported."""
    return MissingComponent(f"{what} needs {library}, which cannot be imported ({error}); run: pip install {library}")
