"""From sources to cleaned shards.

source        opens what `data.sources` names
search        finds the files of a folder or a glob
python_docs   the documentation of this Python installation
ingest        cuts the documents of all sources into shards
cleaning_job  a worker's job: raw documents -> cleaned documents
"""
