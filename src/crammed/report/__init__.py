"""The HTML reports:

page     gathers what the page of runs says, and renders the templates (``*.html.j2``)
figures  its figures as SVG
study    the page of a study
curves   what its arms did on the way
"""
