"""How text becomes a corpus of token rows, in the order of the flow.

read/       sources -> cleaned shards
select/     which documents of all shards to drop, to hold out and to pack
pack/       token ids -> rows, and their order
cleaning/   what is fit to train on: one document by itself, and copies among all

driver      takes text through all of these
extension   adds further text to a corpus
extras      the optional libraries that it needs
workfolder  the folder in which it works
manifest    what the corpus is made of
demo_tasks  the data of the suite ``docs``, from text that ``python-docs`` leaves out
"""
