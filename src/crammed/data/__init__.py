"""How text becomes a corpus of token rows, and how training reads it; in the order of the flow.

sources          where documents come from: files, standard input, the hub
  python_docs      one such source: the documentation of this Python installation
ingest           sources -> cleaned shards
  shards           the files of a shard
  shard_cleaning   a worker's job: raw documents -> cleaned documents
  cleaning/        what is fit to train on
selection        which documents of all shards to drop, to hold out and to pack
  heldout_choice   which documents to hold out; heldout_copies leaves out what repeats them
  given_heldout    those of another corpus in place of a choice
  shard_selection  a worker's job: cleaned documents -> held-out documents, chunks of the others
tokenization/    training a tokenizer; documents -> token ids
shard_packing    a worker's job: token ids -> rows
order            the rows of the corpus sorted from easy to hard, or the reverse
  statistics       what is counted on the way
  samples          dropped documents, kept for audit
manifest         what the corpus is made of

preparation      the driver, which takes text through all of these
engine           who does the work on shards: processes or a Ray cluster

corpus           a corpus on disk, and the order in which training reads its rows
masking          rows -> masked rows, on the device
borders          rows -> which of their tokens are in the same document
heldout          held-out documents -> fixed rows
show             a corpus in words, for the terminal and the report
demo_tasks       the data of the suite ``docs``, from text that python_docs leaves out
"""
