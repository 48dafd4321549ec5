"""The HTML report:

page     gathers what the page says, and renders the templates (``*.html.j2``)
figures  the figures as SVG
"""
