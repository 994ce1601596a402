"""The program's side: reroute what it imports, in its children too, and tell at the end what ran where."""

from __future__ import annotations

import atexit
import marshal
import os
import sys
from contextlib import suppress
from time import time_ns

from ..integrations.recorder import Recorder
from ..rerouting import Rerouting


def begin(asked: dict[str, str]) -> None:
    """Reroute this process; ``asked``: what `launch.main` passes on."""
    recorder = Recorder(int(asked["check"]))
    recorder.path = _path(asked)
    asked["python"] = sys.executable  # which programs change
    with suppress(OSError):
        asked["stderr"] = str(os.fstat(2)[:3])
    Rerouting(asked["precision"], bool(asked["linalg"]), recorder, float(asked["certify"])).__enter__()
    atexit.register(_end, asked, recorder)
    os.register_at_fork(after_in_child=lambda: _forked(asked, recorder))


def _path(asked: dict[str, str]) -> str:
    return os.path.join(asked["folder"], f"{os.getpid()}-{time_ns()}")


def _forked(asked: dict[str, str], recorder: Recorder) -> None:
    recorder.restart(_path(asked))
    util = sys.modules.get("multiprocessing.util")
    if util is not None:  # whose processes end without atexit, and forget what was to be done before
        util.register_after_fork(recorder, lambda one: util.Finalize(None, one.write, exitpriority=0))


def _end(asked: dict[str, str], recorder: Recorder) -> None:
    """Leave the counts for the program's first process, or in that one tell them.

    It imports nothing: modules that evaluate text make Python forget that the program was interrupted, and then its
    exit code would be another one.
    """
    recorder.settle()
    if os.getpid() != int(asked["root"]):
        if recorder.rows or recorder.notes:
            recorder.write()
        return
    try:
        paths = [os.path.join(asked["folder"], name) for name in sorted(os.listdir(asked["folder"]))]
        for path in paths:
            if path != recorder.path and not path.endswith(".new"):
                with open(path, "rb") as file:
                    recorder.merge(marshal.load(file))
        with suppress(Exception):  # the program may have closed it, or put something else there
            sys.stderr.flush()
        with suppress(OSError):
            if str(os.fstat(2)[:3]) == asked.get("stderr"):
                os.write(2, f"peakgemm run, precision {asked['precision']}: {recorder}\n".encode("utf-8", "replace"))
        if asked["json"]:
            recorder.write()
            paths.append(str(recorder.path))
            with suppress(ChildProcessError):  # the program ignores the end of its children
                _keep(asked, str(recorder.path))
        for path in {*paths}:
            if os.path.exists(path):
                os.unlink(path)
        os.rmdir(asked["folder"])
    except Exception as error:  # which is not the program's, and leaves its exit code alone
        with suppress(OSError):
            os.write(2, f"peakgemm run: cannot tell what ran: {error}\n".encode())


def _keep(asked: dict[str, str], path: str) -> None:
    """Have another process write the record."""
    environment = {name: value for name, value in os.environ.items() if name != "PEAKGEMM_RUN"}
    environment["PYTHONPATH"] = os.pathsep.join((asked["source"], environment.get("PYTHONPATH", "")))
    words = [asked["python"], "-m", "peakgemm.run.keep", path, asked["json"], asked["precision"], asked["linalg"],
             asked["command"]]
    os.waitpid(os.posix_spawn(asked["python"], words, environment), 0)
