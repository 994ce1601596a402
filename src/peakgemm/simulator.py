"""The simulator of CUDA kernels, under its public name: `peakgemm.tools.simulator`."""

import sys
from importlib import import_module

from .tools.simulator import *  # noqa: F403  (for type checkers)

sys.modules[__name__] = import_module(".tools.simulator", __package__)  # one module, by either name
