"""The command line. Its files, from the entry to what all verbs share:

app        the program: its verbs, and how errors end it
usage      wrong options and arguments, in one line
training   run, pretrain, adapt, decide
planning   plan
corpora    prepare, data show, data verify, data copy
models     evaluate, finetune, embed, predict, report
exporting  export
studies    study
machine    recipes, runs, watch, doctor
options    options of several verbs
output     results as lines for people or as JSON
"""
