"""Decides which text is fit to train on.

steps       the steps that clean one document: Unicode, length, Gopher's and C4's rules, downstream
unicode     one spelling of the same text
downstream  finds sentences of the evaluation tasks in documents
near        near-duplicates among all documents, by MinHash
copies      documents that repeat held-out text, by the runs of words they share
words       the words of a text in any script, for comparing texts
substring   repeated passages within all documents, by a suffix array
"""
