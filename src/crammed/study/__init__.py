"""Studies, which compare settings at equal budgets:

arms        the study's file, and the configuration of each arm (``studies/``)
runner      trains every arm with every seed
statistics  compares the arms with the baseline
"""
