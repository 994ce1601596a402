"""Where the headers of CUDA are: those of an installed toolkit, or of the wheels that hold them.

The library's own kernels need none. A kernel of a user may: ``cuda_fp16.h``, ``mma.h``, ``cooperative_groups.h``. Of
the host's headers NVRTC has none: ``headers/`` stands for those that device code uses (``cassert``, ``cstdint``), and
``nvcc.h`` there for what nvcc knows without an include. Headers of host code alone (``iostream``, ``cublas_v2.h``) are
left out of the source, for kernels use nothing of them.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from ....errors import InvalidValue

HOST = Path(__file__).resolve().parent / "headers"
PRELUDE = "#include <nvcc.h>\n"
PROBE = "cuda_fp16.h"  # what a folder of CUDA's headers has
REMEDY = ("install CUDA's headers (pip install nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl, or the CUDA "
          "toolkit), or set CUDA_HOME to a toolkit")
GUARD = "remove it, or guard it by #ifndef __CUDACC_RTC__ ... #endif"
_MISSING = re.compile(r'(?:cannot|could not) open source file "([^"]+)"')
_NOT_FOUND = re.compile(r"^// not found: (.+)$", re.M)
_LEFT_OUT = re.compile(r"^// left out: (.+)$", re.M)
# Of the C++ library, what CCCL has for device code as well.
_IN_CCCL = frozenset(("array", "complex", "limits", "tuple", "type_traits", "utility"))
_HOST_ONLY = re.compile(r"""
    algorithm|any|atomic|bitset|cctype|cerrno|charconv|chrono|condition_variable|csignal|cstdarg|ctime|deque|exception|
    execution|filesystem|forward_list|fstream|functional|future|initializer_list|iomanip|ios|iosfwd|iostream|istream|
    iterator|list|locale|map|memory|mutex|new|numeric|optional|ostream|queue|random|regex|set|shared_mutex|sstream|stack|
    stdexcept|streambuf|string|string_view|system_error|thread|typeindex|typeinfo|unordered_map|unordered_set|valarray|
    variant|vector|
    (ctype|errno|getopt|malloc|omp|pthread|signal|stdarg|sys/stat|sys/time|time|unistd|windows)\.h|
    (curand|cuda_profiler_api|cudaProfiler|cblas|mpi|nccl|nvml|mkl|helper_(cuda|functions|string|timer))\.h|
    (cublas|cudnn|cufft|cusolver|cusparse|cutensor|nvrtc|cudaGL|nvToolsExt|nvtx3/|cupti|torch/|ATen/|c10/|pybind11/).*
    """, re.VERBOSE)
# What NVRTC has built in, so that without CUDA's headers kernels lack nothing of it.
_BUILT_IN = re.compile(r"(cuda_runtime|cuda_runtime_api|device_launch_parameters|vector_types|vector_functions|"
                       r"device_functions|math_functions|builtin_types|driver_types|host_defines)\.h")
_CUDAS = re.compile(r"(cuda|cooperative_groups|nv|cub|thrust|crt)/|cu(da|Complex)\w*\.h|(cooperative_groups|mma)\.h"
                    r"|(sm|texture|surface|vector|device|math|driver|library|builtin)_\w+\.(h|hpp)")


@cache
def toolkit() -> Path | None:
    """The folder of CUDA's headers; None: there is none here."""
    return next((folder for folder in _candidates() if (folder / PROBE).is_file()), None)


def _candidates() -> Iterator[Path]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if root := os.environ.get(variable):
            yield Path(root) / "include"
    if (found := _of_wheel("cudart")) is not None:
        yield found
    if nvcc := shutil.which("nvcc"):
        yield Path(nvcc).resolve().parent.parent / "include"
    yield Path("/usr/local/cuda/include")


def _of_wheel(library: str) -> Path | None:
    """Where cuda-pathfinder has the headers of a library; its old versions know fewer places, or none."""
    with suppress(Exception):
        from cuda.pathfinder import find_nvidia_header_directory

        if found := find_nvidia_header_directory(library):
            return Path(found)
    return None


@cache
def _theirs() -> tuple[Path, ...]:
    """The folders of CUDA's headers, those of CCCL (``cuda/std``, ``nv/target``) being beside or elsewhere."""
    found = toolkit()
    if found is None:
        return ()
    more = None if (found / "cccl").is_dir() else _of_wheel("cccl")
    return (found, *([found / "cccl"] if more is None else [more]))


def folders(own: Sequence[Path]) -> list[str]:
    """Where a compilation looks for headers: the caller's ``own`` folders first.

    Raises:
        InvalidValue: one of them is no folder.
    """
    for folder in own:
        if not folder.is_dir():
            raise InvalidValue(f"--include {folder} is not a folder; name the folder that holds the headers")
    return [str(folder) for folder in (*own, HOST, *_theirs()) if folder.is_dir()]  # the host's cuda.h is simpler


def instead(name: str) -> str | None:
    """What stands in a source for the include of a header that lies in no folder of the caller's; None: the include."""
    if name in _IN_CCCL and known(f"cuda/std/{name}"):
        return f"#include <cuda/std/{name}>\nnamespace std {{ using namespace cuda::std; }}"
    if name in _IN_CCCL or _HOST_ONLY.fullmatch(name) or (_BUILT_IN.fullmatch(name) and not known(name)):
        return f"// left out: <{name}>"
    return None


def found(name: str) -> str | None:
    """As `instead`; headers that are not found are left out, too, for the host's code alone may need them."""
    return instead(name) or (None if known(name) else f"// not found: {name}")


def missing(joined: str) -> str:
    """What to do about headers of a source that `found` has left out; empty: there are none."""
    names = list(dict.fromkeys(_NOT_FOUND.findall(joined)))
    if theirs := [one for one in names if _CUDAS.match(one) and toolkit() is None]:
        return f"no headers of CUDA were found, such as {theirs[0]}: {REMEDY}"
    return f"not found: {', '.join(names)}; pass --include DIR with the folder that holds it" if names else ""


def hint(log: str, joined: str) -> str:
    """What to do about a compiler's ``log`` that complains of headers, or of what they declare; empty: it does not.

    ``joined`` is the source as `source.assemble` gives it.
    """
    if match := _MISSING.search(log):
        return f"{match[1]} was not found{_remedy(match[1])}"
    left = list(dict.fromkeys(_LEFT_OUT.findall(joined)))
    if not re.search(r"is undefined|has no member|must be a |is not a (type|template)", log):
        return ""
    if absent := missing(joined):
        return absent
    if not left:
        return ""
    if any(name in _IN_CCCL or _BUILT_IN.fullmatch(name) for name in (one.strip("<>") for one in left)):
        return f"{', '.join(left)}: left out, for no headers of CUDA were found; {REMEDY}"
    return (f"{', '.join(left)}: left out, as headers of host code, and only device code is compiled here. If an error "
            f"names something of theirs, {GUARD}")


def _remedy(name: str) -> str:
    if name.startswith("curand"):
        return ": run pip install nvidia-curand, or set CUDA_HOME to a toolkit"
    if name.startswith(("cutlass/", "cute/")):
        return ": pass --include DIR with the folder include of CUTLASS"
    if not _CUDAS.match(name):
        return (": if it is a header of yours, pass --include DIR with the folder that holds it; if host code alone "
                f"needs it, {GUARD}, for only device code is compiled here")
    found = toolkit()
    return (f", and it is not in {found}: " if found else ", and no headers of CUDA were found: ") + REMEDY


def known(name: str) -> bool:
    """Whether the compiler will find a header without the caller's folders."""
    return any((folder / name).is_file() for folder in (*_theirs(), HOST))


def forget() -> None:
    """Look again, for what is installed may have changed."""
    toolkit.cache_clear()
    _theirs.cache_clear()
