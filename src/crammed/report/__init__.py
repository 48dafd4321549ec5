"""The HTML reports:

page     gathers the content of the page of runs, and renders the templates (``*.html.j2``)
figures  the figures of that page, as SVG
study    the page of a study
curves   the figure of its arms' held-out loss during training
scaling  the figures of a study on several budgets
"""
