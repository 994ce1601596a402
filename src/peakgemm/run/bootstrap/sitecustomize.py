"""Imported by each Python that `peakgemm run` starts, and by its children, to reroute what they import.

It may be another Python's, which has no peakgemm and is another Python 3: plain statements, nothing that raises.
"""

import os
import sys


def _restore() -> None:
    """Take this folder out of the path, and import the ``sitecustomize`` that it hides, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    own = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if own is not None:
            sys.modules.setdefault("sitecustomize", own)


def _begin() -> None:
    asked = dict(line.split("=", 1) for line in os.environ["PEAKGEMM_RUN"].split("\x1f", 9))  # the last: the command
    added = None
    try:
        try:
            from peakgemm.run import hook
        except ImportError:
            if sys.prefix != asked["prefix"]:
                raise
            added = asked["source"]
            sys.path.append(added)
            from peakgemm.run import hook
        hook.begin(asked)
    except Exception as error:
        import marshal

        try:
            with open(os.path.join(asked["folder"], f"note-{os.getpid()}"), "wb") as file:
                marshal.dump({"notes": [f"{sys.executable} was not rerouted: {error}"]}, file, 2)
        except OSError:
            pass
    finally:
        if added in sys.path:
            sys.path.remove(added)


try:
    _restore()
finally:
    if "PEAKGEMM_RUN" in os.environ:
        _begin()
