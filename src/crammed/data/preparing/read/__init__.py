"""From sources to cleaned text, cut into shards.

source        opens what `data.sources` names
part          a file, or whatever else is read in one go
search        finds the files of a folder or a glob
fetching      copies files from addresses to this machine
python_docs   the documentation of this Python installation
task_texts    the texts of tasks, as text to train on
room          whether the disk has room for what is written
ingest        hands the parts of all sources to workers, small ones together, large ones in pieces
reading_job   a worker's job: parts, or a piece of one -> blocks of cleaned documents
cleaning_job  the end of that job: raw documents -> a block of cleaned ones
cleaned       all blocks, and the shards that they are cut into
"""
