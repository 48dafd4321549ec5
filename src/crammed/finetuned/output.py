"""Writes predictions: a table as .csv, or JSON objects, one a line."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from crammed.errors import InputError
from crammed.files.writing import write_chunks
from crammed.formats.records import Record
from crammed.terminal.progress import Progress

Predicted = Iterable[tuple[Record, dict[str, Any]]]
"""Rows, and what `Predictor.answers` says of each."""
_FORMATS = (".jsonl", ".csv")
_ACTING = re.compile("[\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What would act on a terminal, or cannot be encoded; JSON itself escapes the rest of it."""


def print_rows(predicted: Predicted) -> None:
    """Print JSON objects, one a line, as soon as they are known."""
    for line in _json_lines(predicted):
        sys.stdout.write(line)


def write_rows(file: Path, predicted: Predicted, progress: Progress) -> None:
    """Write a file, which appears complete or not at all.

    Raises:
        InputError: its suffix is neither .jsonl nor .csv, or it cannot be written.
    """
    check_format(file)
    counted = progress.track("predicting", predicted, unit="row")
    lines = _csv_lines(counted) if file.suffix == ".csv" else _json_lines(counted)
    write_chunks(file, (line.encode(errors="replace") for line in lines))


def check_format(file: Path) -> None:
    if file.suffix not in _FORMATS:
        raise InputError(f"{file} must end in {' or '.join(_FORMATS)}")


def _joined(record: Record, answer: dict[str, Any]) -> dict[str, Any]:
    if taken := record.keys() & answer.keys():
        raise InputError(
            f"the rows have a column {min(taken)!r}, which predictions would replace: rename it"
        )
    return {**record, **answer}


def _json_lines(predicted: Predicted) -> Iterator[str]:
    for record, answer in predicted:
        line = json.dumps(_joined(record, answer), ensure_ascii=False, default=str)
        if "NaN" in line or "Infinity" in line:  # of Parquet, say, and no JSON
            plain = json.loads(line, parse_constant=lambda _: None)
            line = json.dumps(plain, ensure_ascii=False)
        yield _ACTING.sub(lambda found: f"\\u{ord(found[0]):04x}", line) + "\n"


class _Lines:
    """Takes the one line that `csv` writes at a time, in which it quotes CR and LF alike."""

    def write(self, line: str) -> str:
        return line.removesuffix("\r\n") + "\n"


def _csv_lines(predicted: Predicted) -> Iterator[str]:
    """The columns of each row, then ``predicted``, ``probability`` and one for each label."""
    writer, header = csv.writer(_Lines(), lineterminator="\r\n"), None
    for record, answer in predicted:
        shares = answer.pop("probabilities", {})
        answer |= {f"probability of {label}": share for label, share in shares.items()}
        values = _joined(record, answer)
        if header is None:
            header = list(values)
            yield writer.writerow(header)
        if others := values.keys() - header:
            raise InputError(
                f"the first row has no column {min(others, key=str)!r}, which a later row has: "
                "write .jsonl"
            )
        between = "," if shares else " "  # several labels, or words: as tasks read them from tables
        yield writer.writerow([_cell(values.get(name), between) for name in header])


def _cell(value: Any, between: str) -> Any:
    return between.join(map(str, value)) if isinstance(value, list | tuple) else value
