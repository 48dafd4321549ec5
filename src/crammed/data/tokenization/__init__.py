"""Turns documents into token ids.

tokenizer   special tokens; loading and saving a tokenizer
chunks      cutting text into chunks that can be tokenized one by one
counts      how often each chunk of the corpus occurs
training    training a WordPiece, BPE or Unigram tokenizer
losses      what normalising takes from a text
encoding    token ids of many documents, tokenizing each distinct chunk once
"""
