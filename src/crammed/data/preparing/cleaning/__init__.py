"""Decides which text is fit to train on.

steps       the list of steps that clean one document
unicode     one spelling of the same text
personal    masks personal data
entities    plain words in place of names
language    which language a text is in, by a library
english     the rules of Gopher and of C4
own         a Python function of the user's own
downstream  finds texts of the evaluation tasks in documents
near        near-duplicates among all documents, by MinHash
copies      documents that repeat held-out text, by the runs of words they share
words       the words of a text in any script, and their hashes, for comparing texts
spans       spans of bytes to cut out of documents
substring   repeated passages within all documents, by a suffix array
"""
