"""`peakgemm.integrations.distributed` by its public name, for ``import peakgemm.distributed``."""

import sys
from importlib import import_module

from .integrations.distributed import *  # noqa: F403  (for type checkers)

sys.modules[__name__] = import_module(".integrations.distributed", __package__)  # one module, by either name
