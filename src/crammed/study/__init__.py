"""Studies, which compare settings at equal budgets:

arms        the study's file, and the configuration of each arm (``studies/``)
corpora     which corpus each arm reads
preparing   makes them from text, each distinct one once
scaled      recipes in proportion to a small budget, and values in proportion to others
budgets     arms with several budgets
folder      whether a folder holds another study, and what has finished in it
checks      refuses arms that cannot be trained, before anything begins
runner      trains every arm with every seed, and has them judged
judges      what runs are judged by besides held-out loss
places      where runs are trained: processes, GPUs, a Ray cluster
board       what the progress line says of them
costs       what a study costs before it begins
statistics  compares the arms with the baseline
scaling     power laws, best sizes and the test of types, on a grid of budgets; ``laws`` says them
"""
