"""Adapting an encoder of others: masked-language modelling goes on, on the user's own text.

original   the encoder to adapt: found, checked, loaded, exported in its own class
shape      what counts its cost, and the values that follow from its size
objective  the step that trains it
adapt.yaml the recipe
"""
