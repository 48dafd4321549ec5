"""From documents to token ids.

tokenizer   special tokens; loading and saving a tokenizer
chunks      cutting text into chunks that can be tokenized one by one
counts      how often each chunk of the corpus occurs
training    a new WordPiece, BPE or Unigram tokenizer
encoding    the ids of many documents, each distinct chunk tokenized once
"""
