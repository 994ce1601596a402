"""`peakgemm.use`: FP32 products of torch, JAX and CuPy by peakgemm, whichever of them a program imports.

Nothing is imported for it: libraries that are there are rerouted now, others when the program has imported them.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .errors import InvalidValue
from .integrations.recorder import Recorder

LIBRARIES = ("torch", "jax", "cupy")


class Arrivals:
    """A finder of modules that tells when one of `LIBRARIES` has been imported; it finds none itself."""

    def __init__(self, arrived: Callable[[str], None]) -> None:
        self._arrived = arrived
        self._asking: set[int] = set()  # threads

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The spec of the finders behind this one, whose loader tells."""
        if name not in LIBRARIES or get_ident() in self._asking:
            return None
        self._asking.add(get_ident())
        try:
            from importlib.util import find_spec

            spec = find_spec(name)
        finally:
            self._asking.discard(get_ident())
        loader: Any = getattr(spec, "loader", None)
        if loader is None or not hasattr(loader, "exec_module"):
            return spec
        load = loader.exec_module

        def load_and_tell(module: Any) -> None:
            vars(loader).pop("exec_module", None)  # the loader is as it was
            load(module)
            self._arrived(name)

        if hasattr(loader, "__dict__"):
            loader.exec_module = load_and_tell
        return spec


class Rerouting:
    """What `use` returns: a context manager, and what ran where, which ``print`` shows."""

    def __init__(self, precision: str, linalg: bool, recorder: Recorder, certify: float = 0.0) -> None:
        self._precision, self._linalg, self._certify, self.recorder = precision, linalg, certify, recorder
        self._open: list[Any] = []
        self._arrivals = Arrivals(self._reroute)

    def __enter__(self) -> Rerouting:
        if self._arrivals in sys.meta_path:
            raise InvalidValue("this use() is in force already; make another one for a block within it")
        sys.meta_path.insert(0, self._arrivals)
        for name in LIBRARIES:
            module = sys.modules.get(name)  # None: its import is forbidden
            if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
                self._reroute(name)
        return self

    def __exit__(self, *exc: object) -> None:
        with suppress(ValueError):  # the program has made a list of its own
            sys.meta_path.remove(self._arrivals)
        while self._open:
            self._open.pop().__exit__(*exc)

    def _reroute(self, name: str) -> None:
        """Reroute a library that has been imported; one that cannot be goes on as it is, and the reader is told."""
        if self._arrivals not in sys.meta_path:  # found within the block, and imported behind it
            return
        try:
            block = _MAKE[name](self._precision, self._linalg, self.recorder, self._certify)
            block.__enter__()
            self._open.append(block)
        except Exception as error:  # of whatever kind: the program is importing
            self.recorder.note(f"{name} was not rerouted: {error}")

    def __str__(self) -> str:
        return str(self.recorder)


def use(precision: str = "ieee", *, linalg: bool = False, check: int = 0, certify: float = 0.0) -> Rerouting:
    """Let peakgemm run the FP32 and complex64 products of torch, JAX and CuPy: ``with peakgemm.use() as ran: ...``

    It reroutes what `peakgemm.torch.use` and `peakgemm.cupy.use` do, and every ``dot_general`` that JAX compiles for a
    GPU meanwhile, in libraries imported before or within the block. Products that the program allows in TF32 stay with
    their library, where they are faster. ``print(ran)`` says what ran where, and what stayed and why. Blocks nest, the
    innermost holds.

    Args:
        precision: as for `peakgemm.matmul`.
        linalg: whether linear algebra is rerouted, too.
        check: every so many products of torch and CuPy one is also computed by the library, and compared with the
            bound of FP32; 0: none.
        certify: as for `peakgemm.torch.use`, of torch's products.

    Raises:
        InvalidValue: a precision that there is not, a ``check`` below 0, a ``certify`` that is no share, or ``linalg``
            with a reproducible precision.
    """
    from .calls.request import check_precision
    from .integrations.use import check_linalg, check_share

    check_linalg(check_precision(precision), linalg)
    if type(check) is not int or check < 0:
        raise InvalidValue(f"check = {check!r} is no number of products; pass 0 or more")
    check_share(certify)
    return Rerouting(precision, linalg, Recorder(check), certify)


def _torch(precision: str, linalg: bool, recorder: Recorder, certify: float) -> Any:
    from .integrations.torch_use import Use

    return Use(precision, linalg=linalg, recorder=recorder, certify=certify)


def _jax(precision: str, linalg: bool, recorder: Recorder, certify: float) -> Any:
    from .integrations import jax_reroute
    from .jax import dot_general

    return jax_reroute.make_use(precision, dot_general, recorder=recorder)


def _cupy(precision: str, linalg: bool, recorder: Recorder, certify: float) -> Any:
    from .cupy import make_use

    return make_use(precision, linalg, recorder)


_MAKE: dict[str, Callable[[str, bool, Recorder, float], Any]] = {"torch": _torch, "jax": _jax, "cupy": _cupy}
