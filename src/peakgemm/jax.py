"""`peakgemm.integrations.jax` by its public name, for ``import peakgemm.jax``."""

import sys
from importlib import import_module

from .integrations.jax import *  # noqa: F403  (for type checkers)

sys.modules[__name__] = import_module(".integrations.jax", __package__)  # one module, by either name
