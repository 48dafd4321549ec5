"""Which documents of all shards to drop, to hold out and to pack.

selection       the choice, over all shards together
duplicates      documents that occurred before, also in a corpus, by jobs on ranges of digests
units           lines or paragraphs that several documents have, by jobs on blocks and on ranges
heldout_choice  which documents to hold out
heldout_copies  drops the others that repeat them
given_heldout   those of another corpus or of the user's own files, in place of a choice
mixing          how often to pack each source, by shares or by temperature
selection_job   a worker's job: cleaned documents -> held-out documents, chunks of the others;
                how often to pack each document, by the weight of its source
counting_job    a worker's job: the chunks of some shards -> how often each occurs in them
"""
