"""Continues pretraining an encoder, by masked-language modelling on the user's own text.

original      the encoder to adapt: found, checked, loaded, exported in its own class
new_words     words added to its tokenizer, and what their embeddings begin as
shape         what counts its cost, and the values that follow from its size
objective     the step that trains it; ``ours`` has that of our own engine
general_text  text of the old domain, replayed and measured before and after; that of tasks
adapting      what a run of it asks for, says, measures and keeps
words         what is said of the result
adapt.yaml    the recipe
"""
