"""What a family of kernels is: everything that the launcher, the choice, the simulator and the instruments ask of a
kernel beyond its row of the table. Nobody outside a family asks which one is at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import InvalidValue
from ..problem import Config, Problem
from ..runtime.convention import LIBRARY, Convention
from ..runtime.tensor_map import Box

if TYPE_CHECKING:
    from .emulated.schemes import Scheme
    from .profile import Machine
    from .recipe import Recipe
    from .registry import Kernel
    from .schedule import Schedule

MAX_BLOCKS = 2**31 - 1  # of a grid, along x


Own = Any  # a configuration of the family's own kind
Estimated = tuple[Config, float]  # a configuration and its modelled microseconds


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel of a product: what it is compiled from, and its launch.

    ``arguments`` are the bytes that it takes by value, ``boxes`` what the tensor maps behind them say, ``convention``
    how its parameters are laid out. A block needs ``shared_bytes`` of dynamic shared memory, and asks for more where
    blocks are dealt ``even``ly (`bound.shared_bytes`). ``cluster`` blocks form a cluster, where the kernel leaves that
    to its launch. ``offset``: so many bytes behind the start of the workspace lies what it is given of that.
    """

    recipe: Recipe
    blocks: int
    threads: int
    arguments: bytes
    shared_bytes: int = 0
    even: bool = True
    boxes: tuple[Box, ...] = ()
    cluster: int = 1
    offset: int = 0
    convention: Convention = LIBRARY


@dataclass(frozen=True, slots=True)
class Launches:
    """The kernels of a product in the order of their launches; none where C is empty.

    ``problem`` is what they see: where that asks for C^T (`Problem.turned`) they are given B as their A.
    ``workspace_bytes`` of device memory hold partial sums, and operands repacked or split. A guard may reroute
    ``half_tiles`` parts of the result to FFMA; ``counters``: where the workspace tells which, as bytes from its start
    and how many int32 to add up.
    """

    problem: Problem
    kernels: tuple[Launch, ...] = ()
    workspace_bytes: int = 0
    half_tiles: int = 0
    counters: tuple[int, int] = (0, 0)


def _unknown(*_: Any) -> Any:
    raise InvalidValue("this family of kernels has nothing of the kind")


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """What kernels that are cut, compiled and launched alike have in common. The module of a kernel makes it, `rung`
    that of the ladder.

    Attributes:
        recipe: what the kernel that multiplies is compiled from, of kernel, config, problem and architecture.
        reduce_recipe: the same of the kernel that adds up partial sums.
        launches: of kernel, config, problem, architecture, number of SMs, and the addresses of A and of B split before
            (0: they were not). Raises `InvalidValue` for more blocks than a grid has, or parts than are counted.
        schedule: how the blocks of a config share a problem on so many SMs, where they are dealt tiles of FFMAs.
        specialisation: the macros that a compilation takes from config and problem.
        refuses: why a problem is none for the kernel, whatever the config.
        one_chain: whether a config that does not share K sums every element by one chain of FMAs, k = 0 ... K - 1: what
            ``reproducible=True`` asks for. All end alike: ``v = alpha acc``, and where beta is not 0,
            ``fma(beta, c0, v)``.
        without_workspace: the kernel and config that take over where there is no room for a workspace; None: none do.
        panels: the operands, of ``"ab"`` as the kernel sees them, that it reads split before.
        scheme: how operands are split for tensor cores; None: FFMA.
        name: tells kernels of the same name apart.
        configs: those that are compared on a GPU, as they are compiled for any problem.
        candidates: the configurations worth a comparison for a problem on a GPU, with their modelled microseconds;
            of the operand ``"a"`` or ``"b"`` it may be said that it has been split before.
        chains: the same of those that sum by one chain, for reproducible products.
        numbers: the section of a profile that has the numbers of its cost model.
        tiled: whether blocks have whole tiles, or ranges of their k-steps.
        triangles: whether it computes one triangle of C where a problem asks for that.
        lives_on_l1: whether operands come by way of L1, which has what shared memory leaves of an SM's 256 KB.
    """

    recipe: Callable[[Kernel, Own, Problem, str], Recipe] = _unknown
    reduce_recipe: Callable[[Kernel, Own, Problem, str], Recipe] = _unknown
    launches: Callable[[Kernel, Own, Problem, str, int, int, int], Launches] = _unknown
    schedule: Callable[[Own, Problem, int], Schedule] = _unknown
    specialisation: Callable[[Own, Problem], dict[str, int]] = _unknown
    refuses: Callable[[Problem], Iterable[str]] = lambda problem: ()
    one_chain: Callable[[Own, Problem], bool] = lambda config, problem: False
    without_workspace: Callable[[Kernel, Own], tuple[Kernel, Config] | None] = lambda kernel, config: None
    panels: str = ""
    scheme: Scheme | None = None
    name: str = ""
    configs: Callable[[Kernel, Machine], Iterable[Config]] = lambda kernel, machine: ()
    candidates: Callable[[Kernel, Problem, Machine, str], Iterable[Estimated]] = lambda *_: ()
    chains: Callable[[Kernel, Problem, Machine], Iterable[Estimated]] = lambda *_: ()
    numbers: str = ""
    tiled: bool = False
    triangles: bool = False
    lives_on_l1: bool = False
