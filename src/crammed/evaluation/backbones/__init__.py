"""Encoders to evaluate, wherever they come from:

spec                 finds the model and decides which of the two kinds it is
base                 the interface that evaluation needs
run_directory        a model trained here
huggingface          a transformers model
huggingface_files    finds and checks that model's files
huggingface_weights  checks its weights
tokens               tokenizes texts with either kind of tokenizer
"""
