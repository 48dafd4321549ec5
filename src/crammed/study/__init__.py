"""Studies, which compare settings at equal budgets:

arms        the study's file, and the configuration of each arm (``studies/``)
folder      whether a folder holds another study, and what has finished in it
runner      trains every arm with every seed
statistics  compares the arms with the baseline
"""
