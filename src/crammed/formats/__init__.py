"""Reads files of every supported format; nothing here knows what the text is for.

Every fault in a file is an `InputError` of one line that names the file and, if possible, the line
or row. `lines.read_faults` and `records.table_faults` turn what libraries raise into one.

streams       a file's bytes -> decompressed, hashed, translated to UTF-8 and line feeds
lines         these -> decoded, numbered lines; what to do about damage
json_array    a JSON array -> the text of each of its objects
records       JSON lines and arrays, Parquet, Arrow -> dicts
tables        CSV and TSV tables -> dicts
plain         lines of plain text -> documents
markdown      Markdown -> text
restructured  reStructuredText -> text
web           an HTML page -> text
warc          a web archive -> the text of each of its pages
archives      a zip or tar archive -> the streams of its files
sniff         the first bytes of a file -> its format
blocks        a large file of lines -> blocks to read apart; ``row_groups`` of a Parquet file
documents     any of these -> documents (one string each)
remote        addresses -> copies of what they name
hub           data sets of the Hugging Face hub -> documents, streamed

Documents are text to train on (`crammed.data`); records are rows of a task (`crammed.tasks`).
"""
