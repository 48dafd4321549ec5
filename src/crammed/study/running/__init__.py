"""From a study as it was asked for to its result:

request    what was asked, and its steps: prepare, check, train, judge
folder     whether a folder holds another study, and what has finished in it
preparing  prepares the corpora from text, each distinct one once
seconds    budgets of time, as FLOPs for each arm
checks     refuses arms that cannot be trained, before anything starts
runner     trains every arm with every seed, and has the runs judged
judges     what runs are judged by besides held-out loss
places     where runs are trained: processes, GPUs, a Ray cluster
board      the progress line
costs      what a study will cost; ``timing`` measures or reads how long its parts take
"""
