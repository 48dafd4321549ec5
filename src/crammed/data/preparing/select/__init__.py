"""Which documents of all shards to drop, to hold out and to pack.

selection       the choice, over all shards together
heldout_choice  which documents to hold out
heldout_copies  drops the others that repeat them
given_heldout   those of another corpus, in place of a choice
known           documents of a corpus that is extended, by their digests
mixing          how often to pack each source, by shares or by temperature
selection_job   a worker's job: cleaned documents -> held-out documents, chunks of the others
"""
