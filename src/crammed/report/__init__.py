"""The HTML reports:

page     gathers the content of the page of runs, and renders the templates (``*.html.j2``)
drawing  our style of figures, and what becomes of one that fails
verdict  what a run achieved, in sentences
figures  the figures of that page, as SVG
bars     its bars, which need no drawing
study    the page of a study
curves   the figure of its arms' held-out loss during training
scaling  the figures of a study on several budgets
"""

from importlib import import_module

from crammed.errors import InputError

try:
    import_module("matplotlib")  # before anything here draws with it
except ImportError:
    raise
except Exception as error:  # its settings are not text
    raise InputError(
        f"matplotlib, which draws the report, cannot be loaded: {error}; mend or remove the "
        "matplotlibrc that it reads"
    ) from error
