"""Where documents come from.

source       opens what `data.sources` names
search       finds the files of a folder or a glob
python_docs  the documentation of this Python installation
"""
