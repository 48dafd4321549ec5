"""Sentence embeddings: an encoder learns from unlabelled text to tell texts apart.

making    everything: from an encoder and text to a folder for sentence-transformers
passages  text -> passages, and which of them are neighbours
tuning    the contrastive loss, and the loop
denoising another loss: a text is rebuilt from its vector
scoring   scores of the vectors, before and after
beside    BM25, and the vectors of another model
folder    the folder, and its check
card      its README.md, and its scores in words
"""
