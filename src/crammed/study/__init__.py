"""Studies, which compare settings at equal budgets:

arms        the study's file, and the configuration of each arm (``studies/``)
corpora     which corpus each arm reads
preparing   prepares the corpora from text, each distinct one once
small       recipes scaled down for a small budget, and values multiplied by factors
budgets     arms with several budgets
seconds     budgets of time, as FLOPs for each arm
result      what study.json holds
folder      whether a folder holds another study, and what has finished in it
checks      refuses arms that cannot be trained, before anything starts
request     a study as it was asked for; `crammed study` starts here
runner      trains every arm with every seed, and has the runs judged
judges      what runs are judged by besides held-out loss
places      where runs are trained: processes, GPUs, a Ray cluster
board       the progress line
costs       what a study will cost; ``timing`` measures or reads how long its parts take
statistics  compares the arms with the baseline; ``moderation`` has their variances
power       what a study could have found
table       the comparison as tables for a terminal
scaling     power laws and best sizes on a grid of budgets; ``exchange`` tests whether types differ,
            and ``laws`` words the findings
"""
