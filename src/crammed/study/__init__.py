"""Studies, which compare settings at equal budgets:

arms        the study's file, and the configuration of each arm (``studies/``)
scaled      recipes in proportion to a small budget, and values in proportion to others
budgets     arms with several budgets
folder      whether a folder holds another study, and what has finished in it
runner      trains every arm with every seed
costs       what a study costs before it begins
statistics  compares the arms with the baseline
scaling     power laws, best sizes and the test of types, on a grid of budgets; ``laws`` says them
"""
