"""`peakgemm.integrations.torch` by its public name, for ``import peakgemm.torch``."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .integrations.torch import *  # noqa: F403

sys.modules[__name__] = import_module(".integrations.torch", __package__)  # one module, by either name
