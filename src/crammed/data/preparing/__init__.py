"""How text becomes a corpus of token rows, in the order of the flow.

sources/         where documents come from: files, standard input, the hub, this Python installation
ingest           sources -> cleaned shards
  shards           the files of a shard
  shard_cleaning   a worker's job: raw documents -> cleaned documents
  cleaning/        what is fit to train on
selection        which documents of all shards to drop, to hold out and to pack
  heldout_choice   which documents to hold out; heldout_copies drops the others that repeat them
  given_heldout    those of another corpus, in place of a choice
  shard_selection  a worker's job: cleaned documents -> held-out documents, chunks of the others
shard_packing    a worker's job: token ids -> rows
order            the rows of the corpus sorted from easy to hard, or the reverse
manifest         what the corpus is made of

driver           takes text through all of these
workfolder       the folder in which it works
demo_tasks       the data of the suite ``docs``, from text that ``python-docs`` leaves out
"""
