"""Which text is fit to train on.

steps       what is done to one document: Unicode, length, Gopher's and C4's rules, downstream
downstream  sentences of the evaluation tasks, to be found in documents
near        near-duplicates among all documents, by MinHash
substring   repeated passages within all documents, by a suffix array
"""
