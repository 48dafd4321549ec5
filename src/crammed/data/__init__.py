"""Text as training reads it; `preparing` makes it.

tokenization/  training a tokenizer; documents -> token ids
corpus         a corpus on disk, and the order in which training reads its rows
masking        rows -> masked rows, on the device
collocations   which words belong together, for masks over groups of words
borders        rows -> which of their tokens belong to the same document
heldout        held-out documents -> fixed rows
statistics     what is counted in a corpus
shards         the files that carry a shard of text from stage to stage of preparing
samples        dropped documents, kept for audit
show           a description of a corpus, for the terminal and the report
elsewhere      copies of a corpus at an address such as s3://bucket/corpus
verification   whether a corpus still matches its hashes
preparing/     how text becomes a corpus
"""
