"""Records written in every format, and sources opened on them."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crammed.config import DataConfig
from crammed.data.preparing.read.source import Source, open_sources
from crammed.errors import InputError
from crammed.formats.lines import Faults

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
}
OF_A_SOURCE = ("name", "format", "where", "weight", "max_characters")


def opened(path: Path | str, **values: Any) -> Source:
    """Open one source; `values` are keys of the source or of `data`."""
    own = {key: value for key, value in values.items() if key in OF_A_SOURCE}
    rest = {key: value for key, value in values.items() if key not in OF_A_SOURCE}
    config = DataConfig.model_validate({"sources": [{"path": str(path), **own}], **rest})
    return open_sources(config)[0]


def read(path: Path | str, **values: Any) -> list[str]:
    faults = Faults(values.get("unreadable") == "skip")
    return [text for part in opened(path, **values).parts for text in part.documents(faults)]


def refusal(path: Path | str, **values: Any) -> str:
    with pytest.raises(InputError) as caught:
        read(path, **values)
    message = str(caught.value)
    assert "\n" not in message
    return message


Records = list[dict[str, Any]]


def json_lines(records: Records) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def json_array(records: Records) -> bytes:
    return json.dumps(records, indent=1).encode()


def cells(records: Records) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(records[0]))
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue().encode()


def tabs(records: Records) -> bytes:
    """A table without quoting, whose cells hold neither tabs nor line breaks."""
    rows = [list(records[0]), *([str(value) for value in each.values()] for each in records)]
    return "".join("\t".join(row) + "\n" for row in rows).encode()


def parquet(records: Records | pa.Table) -> bytes:
    sink = io.BytesIO()
    table = records if isinstance(records, pa.Table) else pa.Table.from_pylist(records)
    pq.write_table(table, sink, store_schema=False)
    return sink.getvalue()


def arrow(records: Records | pa.Table, kind: str = "stream") -> bytes:
    table = records if isinstance(records, pa.Table) else pa.Table.from_pylist(records)
    sink = io.BytesIO()
    new = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
    with new(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


FORMATS: dict[str, Callable[[Records], bytes]] = {
    ".jsonl": json_lines,
    ".ndjson": json_lines,
    ".json": json_array,
    ".csv": cells,
    ".tsv": tabs,
    ".parquet": parquet,
    ".arrow": arrow,
}
WHOLE = (".parquet", ".arrow")


def fits(suffix: str, text: str) -> bool:
    return suffix != ".tsv" or not {"\t", "\n", "\r"} & {*text}


def zipped(files: dict[str, bytes]) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return sink.getvalue()


def tarred(files: dict[str, bytes]) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return sink.getvalue()


def web_archive(records: list[tuple[str, str, bytes]]) -> bytes:
    """Records, each given by its type, its media type and its content."""
    return b"".join(
        f"WARC/1.0\r\nWARC-Type: {kind}\r\nContent-Type: {media}\r\n"
        f"Content-Length: {len(data)}\r\n\r\n".encode()
        + data
        + b"\r\n\r\n"
        for kind, media, data in records
    )


PAGE = "<html><body><h1>A title</h1><p>Some schön &amp; long text.</p></body></html>"
FILES = {
    "a/one.txt": b"One.\n\nStill one.\n",
    "two.jsonl": b'{"text": "Two."}\n{"text": "Three."}\n',
}
MARKUP: dict[str, bytes] = {
    ".md": b"# Title\n\nSome *text*.\n",
    ".rst": b"Title\n=====\n\nSome *text*.\n",
    ".html": PAGE.encode(),
    ".warc": web_archive(
        [("conversion", "text/plain", b"One."), ("response", "text/html", b"<p>x")]
    ),
    ".zip": zipped(FILES),
    ".tar": tarred(FILES),
}
"""A file of each format that is neither plain text nor records."""
