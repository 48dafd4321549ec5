"""The commands as functions, which Python programs call (docs/python.md).

training  run, pretrain, adapt
corpora   prepare
models    evaluate, decide, finetune, embed
results   what these return
turn      one call at a time
lines     results in words
asking    the options that several of them share, and the configuration that results
"""
