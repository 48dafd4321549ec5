"""The HTML reports:

page     gathers the content of the page of runs, and renders the templates (``*.html.j2``)
drawing  our style of figures, and what becomes of one that fails
verdict  what a run achieved, in sentences
figures  the figures of that page, as SVG
bars     its bars, which need no drawing
watching the live page of runs, and its server
study    the page of a study
curves   the figure of its arms' held-out loss during training
scaling  the figures of a study on several budgets
decision the page of a decision between several ways to an encoder
"""

import os
import sys
from importlib import import_module

_SETTINGS = ("MATPLOTLIBRC", "MPLBACKEND")


def _import_matplotlib() -> None:
    """Import the library before anything here draws with it, whatever its settings hold.

    Settings that cannot be read are left out: figures use none of them (`drawing`).
    """
    try:
        import_module("matplotlib")
        return
    except ImportError:
        raise
    except Exception as error:
        print(f"report  without the settings of matplotlib: {error}", file=sys.stderr)
    for half in [name for name in sys.modules if name.startswith("matplotlib.")]:
        del sys.modules[half]
    kept = {name: os.environ.pop(name) for name in _SETTINGS if name in os.environ}
    os.environ["MATPLOTLIBRC"] = os.devnull
    try:
        import_module("matplotlib")
    finally:
        del os.environ["MATPLOTLIBRC"]
        os.environ.update(kept)


_import_matplotlib()
