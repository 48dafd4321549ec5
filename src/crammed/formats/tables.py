"""Reads tables in text form: how their cells are separated and quoted is found by looking."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Literal

from crammed.errors import InputError
from crammed.formats import lines
from crammed.formats.lines import STOP, Faults, File, Numbered, lines_of, open_lines
from crammed.formats.records import Records, check_names, shown_names
from crammed.quantity import counted

_QUOTED = re.compile(r'(^|[,;|\t])"(?:[^"]|"")*"')
"""A cell in quotation marks, in which a separator is text."""
_DELIMITERS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a vertical bar"}
_LOOKED_AT = 1 << 20  # characters
_LONGEST_CELL = 100  # lines; a quotation mark that is not closed for longer does not begin a cell


def csv_records(file: File, faults: Faults = STOP, text_field: str | None = None) -> Records:
    """Rows of a table whose cells may be quoted, and whose first line names the columns.

    Cells are separated by what is in the first line: commas, semicolons, tabs or vertical bars.

    Args:
        text_field: a column that there has to be, or its number if the first line is a row.
    """
    return _records(file, ".csv", faults, text_field)


def tsv_records(file: File) -> Records:
    """Rows of a tab-separated table, whose first line names the columns.

    There is no quoting, as in the tables of GLUE: a quotation mark is a character like any other,
    and no cell holds a tab or a line break.
    """
    return _records(file, ".tsv", STOP, None)


def tabbed_records(file: File, faults: Faults, text_field: str) -> Records:
    """As `tsv_records`, but cells are quoted if the file looks as if they are."""
    return _records(file, "", faults, text_field)


def _records(
    file: File, kind: Literal[".csv", ".tsv", ""], faults: Faults, text_field: str | None
) -> Records:
    csv.field_size_limit(lines.LARGEST)
    with open_lines(file) as stream:
        numbered = lines_of(stream, file)
        head, fault = _head(numbered)
        texts = [_text(line) for _, line in head]
        numbered = chain(head, _rest(numbered, fault))
        hint = ""
        if kind == ".csv":
            delimiter = delimiter_of(texts)
            rows = _quoted_rows(numbered, delimiter, file, faults)
            hint = f"; a cell that contains {_DELIMITERS[delimiter]} must be in quotation marks"
        elif kind == "" and is_quoted(texts):
            rows = _quoted_rows(numbered, "\t", file, faults)
        else:
            rows = _plain_rows(numbered, faults)
            hint = "; no cell of this file is in quotation marks: write .csv if some need them"
        yield from _named_cells(file, rows, faults, text_field, hint)


def _text(line: str | InputError) -> str:
    """A line; of one that is not UTF-8, what shows where cells end, and else a line break."""
    if isinstance(line, str):
        return line
    cause = line.__cause__
    return cause.object.decode(errors="replace") if isinstance(cause, UnicodeDecodeError) else "\n"


class _Lines:
    """Lines for a reader that would take what follows an exception for the beginning of a row.

    `number` is that of the line that was read last.
    """

    def __init__(self, numbered: Numbered) -> None:
        self.number = 0
        self._fault: InputError | None = None
        self._numbered = numbered

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        self.number, line = next(self._numbered)
        if isinstance(line, InputError):
            self._fault = self._fault or line
        return _text(line)

    def take_fault(self) -> InputError | None:
        """What is wrong with the first unreadable line of the row that was read last."""
        fault, self._fault = self._fault, None
        return fault


Rows = Iterator[tuple[int, list[str]]]
"""Cells, with the number of the first line that they are from."""


def _quoted_rows(numbered: Numbered, delimiter: str, file: File, faults: Faults) -> Rows:
    source = _Lines(numbered)
    reader = csv.reader(source, delimiter=delimiter, strict=True)
    while True:
        first, lost = source.number + 1, 1
        cells: list[str] = []
        broken = None
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            lost = source.number - first + 1
            over = f" of {lost:,} lines" if lost > 1 else ""
            broken = InputError(
                f"{file.shown}, line {first}: a broken row{over} ({error}); cells with quotation "
                'marks or line breaks must be quoted, as in "a ""word"" here"'
            )
        if (fault := source.take_fault() or broken) is None:
            yield first, cells
        else:  # a quotation mark that is not closed takes in rows that come after it
            faults.found(fault, lost)


def _plain_rows(numbered: Numbered, faults: Faults) -> Rows:
    for number, line in numbered:
        if isinstance(line, InputError):
            faults.found(line)
        else:
            text = line.rstrip("\r\n")
            yield number, text.split("\t") if text else []


def _named_cells(
    file: File, rows: Rows, faults: Faults, text_field: str | None, hint: str
) -> Records:
    """Records of numbered rows; the first row that is not empty names the columns.

    Programs write the empty cell of an only column as a blank line. At the end of a file, such
    lines are no rows, and neither are they in a corpus, which has no use for empty documents.
    """
    columns: list[str] = []
    blank: list[int] = []
    for number, cells in rows:
        if not cells:
            if len(columns) == 1 and text_field is None:
                blank.append(number)
            continue
        place = f"{file.shown}, line {number}"
        if not columns:
            if faults.records and not (text_field or "").isdecimal():  # of the columns' names
                raise InputError(faults.first)
            columns = _columns(cells, place, text_field)
            if columns is cells:
                continue
        yield from ((f"{file.shown}, line {each}", {columns[0]: ""}) for each in blank)
        blank.clear()
        if len(cells) == len(columns):
            yield place, dict(zip(columns, cells, strict=True))
        else:
            fault = (
                f"{counted(len(cells), 'cell')} in a row, but "
                f"{counted(len(columns), 'column')} in the first line"
            )
            faults.found(InputError(f"{place}: {fault}{hint}"))


def _columns(cells: list[str], place: str, text_field: str | None) -> list[str]:
    """The names that the first row gives to the columns, or else their numbers.

    White space around the names is dropped if the column of the text is found only then.
    """
    # A row of data may hold that very number; only a row of numbers can be names that are numbers.
    by_place = (text_field or "").isdecimal() and not all(map(str.isdecimal, filter(None, cells)))
    names = [cell.strip() for cell in cells]
    if text_field in names and text_field not in cells and not by_place:
        cells[:] = names
    if text_field is None or (text_field in cells and not by_place):
        check_names(place, filter(None, cells))  # unnamed columns are ignored
        return cells
    if text_field.isdecimal() and 0 < int(text_field) <= len(cells):
        return [str(number) for number in range(1, len(cells) + 1)]
    raise InputError(
        f"{place}: no column {text_field!r} (it has: {shown_names(cells)}); name another with "
        "data.text_field=NAME or, if this line is a row already, by the column's number, such as "
        "data.text_field=1"
    )


def _head(numbered: Numbered) -> tuple[list[tuple[int, str | InputError]], Exception | None]:
    """The first lines, as far as is looked at, and any damage that follows them."""
    head: list[tuple[int, str | InputError]] = []
    size = 0
    try:
        for number, line in numbered:
            head.append((number, line))
            size += len(_text(line))
            if size >= _LOOKED_AT:
                break
    except Exception as error:  # it takes its turn after these lines
        return head, error
    return head, None


def _rest(numbered: Numbered, fault: Exception | None) -> Numbered:
    if fault is not None:
        raise fault
    yield from numbered


def has_tabs(file: File) -> bool:
    """Whether `csv_records` takes the cells of a file to be separated by tabs."""
    csv.field_size_limit(lines.LARGEST)
    with open_lines(file) as stream:
        head, _ = _head(lines_of(stream, file))
    return delimiter_of([_text(line) for _, line in head]) == "\t"


def delimiter_of(texts: Sequence[str]) -> str:
    """What separates most cells in the first line that is not empty; a comma if nothing does."""
    header = next((text for text in texts if text.strip()), "").replace("\r", " ")
    header = _QUOTED.sub(r"\1", header)

    def cells(delimiter: str) -> int:
        return max((len(row) for row in csv.reader([header], delimiter=delimiter)), default=0)

    return max(_DELIMITERS, key=cells)


def is_quoted(texts: Sequence[str]) -> bool:
    """Whether cells of a tab-separated table are quoted, given its first lines.

    They are if rows have as many cells as the header only then; or if the header is quoted; or if
    a quotation mark is doubled in a cell that is in quotation marks, and no cell contradicts.
    """
    texts = [text for text in texts if text.strip()]
    rows = _rows_if_quoted(texts)
    if not any('"' in text for text in texts) or len({len(row) for row in rows}) != 1:
        return False
    plain = [text.rstrip("\r\n").split("\t") for text in texts]
    if len({len(row) for row in plain}) > 1:
        return True
    cells = (cell for row in plain for cell in row)
    return all(cell[:1] == '"' for cell in plain[0]) or any(
        cell[:1] == '"' and '""' in cell[1:-1] for cell in cells
    )


def _rows_if_quoted(texts: Sequence[str]) -> list[list[str]]:
    """The rows by the rules of quoting; none if a row breaks them. The last may be cut off."""
    reader = csv.reader(iter(texts), delimiter="\t", strict=True)
    rows, ended = [], 0
    try:
        for row in reader:
            rows.append(row)
            ended = reader.line_num
    except csv.Error:
        if reader.line_num < len(texts) or len(texts) - ended > _LONGEST_CELL:
            return []
    return rows
