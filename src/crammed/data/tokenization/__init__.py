"""Turns documents into token ids.

tokenizer   special tokens; loading and saving a tokenizer
named       the tokenizer that `tokenizer.file` names
chunks      cutting text into chunks that can be tokenized one by one
training    training a WordPiece, BPE or Unigram tokenizer
losses      what to know about a tokenizer and a text: lost letters, words without spaces
encoding    token ids of many documents, tokenizing each distinct chunk once
"""
