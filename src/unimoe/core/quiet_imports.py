"""Libraries whose import changes the process: imported once, with what they changed put back.

rich draws a random number, threadpoolctl sets a variable of the environment, and ruamel.yaml filters warnings. A module
that needs one of them imports this one before.
"""

from __future__ import annotations

import os
import random
import warnings

_drawn, _variable = random.getstate(), "KMP_DUPLICATE_LIB_OK"
_was_set = _variable in os.environ
with warnings.catch_warnings():
    import rich.style  # noqa: F401
    import ruamel.yaml.error  # noqa: F401
    import threadpoolctl  # noqa: F401
random.setstate(_drawn)
if not _was_set:
    os.environ.pop(_variable, None)
