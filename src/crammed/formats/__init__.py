"""Reads files of every supported format; nothing here knows what the text is for.

lines       bytes -> decompressed, decoded, numbered lines
json_array  a JSON array -> the text of each of its objects
records     JSON lines and arrays, CSV and TSV tables, Parquet, Arrow -> dicts
documents   any of these, and plain text -> documents (one string each)
hub         data sets of the Hugging Face hub -> documents, streamed

Documents are text to train on (`crammed.data`); records are rows of a task (`crammed.tasks`).
"""
