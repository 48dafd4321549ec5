"""Keeps Python from importing what lies in the working directory, which may be text of others.

``python -m`` and ``python -c``, by which workers are started as well, look for every module there
before anywhere else: a downloaded ``pickle.py`` would be run.

This module imports very little, so that it can act before everything else is imported.
"""

import os
import sys

SAFE = "PYTHONSAFEPATH"
"""Environment variable that Python reads when it starts, and that every child inherits."""


def forget_working_directory() -> None:
    """Leave the working directory out of this program's imports, as ``python -P`` does.

    It stays if this package itself was found there, as in a copy of its source code.
    """
    try:
        here = os.getcwd()
    except OSError:  # it was removed
        here = ""
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if here and os.path.realpath(here) == os.path.realpath(own):
        return
    if not sys.flags.safe_path and sys.path and sys.path[0] in ("", here):
        del sys.path[0]
    os.environ[SAFE] = "1"
