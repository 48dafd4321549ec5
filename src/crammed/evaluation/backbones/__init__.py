"""Encoders to evaluate, whatever their origin:

spec               finds the model, and decides which of the two kinds it is
base               what evaluation asks of a model
run_directory      a model trained here
huggingface        a model of transformers
huggingface_files  its files, and what may be wrong with them
tokens             texts as token ids, by either kind of tokenizer
"""
