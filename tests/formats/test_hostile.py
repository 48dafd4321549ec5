"""Damaged and hostile files give documents or one line that says what is wrong, never a crash."""

from __future__ import annotations

import errno
import io
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from crammed.errors import InputError
from crammed.formats import lines
from crammed.formats.documents import READERS, ReadOptions, format_of
from crammed.formats.lines import STOP, File
from crammed.formats.sniff import is_json
from support.samples import COMPRESS, FORMATS, MARKUP, WHOLE

RECORDS = [{"text": f'line {n} é "q", x', "n": n} for n in range(40)]
CONTENT = {
    ".txt": b"one\r\n\n\xc3\xa9\n\n[1]\n",
    **{suffix: write(RECORDS) for suffix, write in FORMATS.items()},
    **MARKUP,
}
OPTIONS = (ReadOptions(), ReadOptions(text_field="a.b", where={"n": ("1", "2")}))
MANY = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _read(file: Path) -> None:
    """Read a file of any format, and require text or a message of one line."""
    reader = READERS[format_of(file) or ""]
    for options in OPTIONS:
        said = ""
        try:
            for text in reader(File(file, file.name), options, STOP):
                text.encode()
            is_json(File(file, file.name))
        except InputError as error:
            said = str(error)
        assert "\n" not in said


def _damaged(data: bytes, seed: int) -> bytes:
    draw, damaged = random.Random(seed), bytearray(data)
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(len(damaged) + 1)
        kind = draw.randrange(5)
        if kind == 0 and at < len(damaged):
            damaged[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del damaged[at:]
        elif kind == 2:
            damaged[at:at] = draw.randbytes(draw.randrange(9))
        elif kind == 3:
            del damaged[at : at + draw.randrange(20)]
        else:
            other = draw.randrange(len(damaged) + 1)
            damaged[at : at + 8] = damaged[other : other + 8]
    return bytes(damaged)


@pytest.mark.parametrize("suffix", READERS)
@MANY
@given(seed=st.integers(0, 2**32), compression=st.sampled_from([*COMPRESS]), first=st.booleans())
@example(seed=90, compression="", first=False)  # the version of a zip file
@example(seed=792, compression="", first=False)  # a file of a zip file without a name
def test_damaged_files(
    tmp_path: Path, suffix: str, seed: int, compression: str, first: bool
) -> None:
    compression = "" if suffix in (*WHOLE, ".zip") else compression
    compress, data = COMPRESS[compression], CONTENT[suffix]
    damaged = compress(_damaged(data, seed)) if first else _damaged(compress(data), seed)
    file = tmp_path / f"a{suffix}{compression}"
    file.write_bytes(damaged)
    _read(file)


@pytest.mark.parametrize("suffix", READERS)
@MANY
@given(data=st.binary(max_size=200) | st.text('[]{}",:\\ \t\r\nax1é\ufeff').map(str.encode))
def test_any_bytes(tmp_path: Path, suffix: str, data: bytes) -> None:
    file = tmp_path / f"a{suffix}"
    file.write_bytes(data)
    _read(file)


class _Failing(io.RawIOBase):
    """A disk that gives a few bytes and then an error."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._data:
            raise OSError(errno.EIO, "Input/output error")
        count = min(len(buffer), len(self._data))
        buffer[:count], self._data = self._data[:count], self._data[count:]
        return count


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".json", ".csv", ".tsv"])
def test_a_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setattr(lines, "open", lambda *_: _Failing(CONTENT[suffix][:50]), raising=False)
    file = File(tmp_path / f"a{suffix}", "a")
    with pytest.raises(InputError, match="a cannot be read to its end: Input/output error"):
        list(READERS[suffix](file, ReadOptions(), STOP))


@pytest.mark.parametrize("suffix", WHOLE)
def test_names_and_values_that_are_none(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a{suffix}"
    late = pa.array([2**62], pa.timestamp("us"))
    table = pa.table({"text": ["a"], "n": late})
    misnamed = pa.table({"text": ["a"], "naming": ["b"]})
    for each, old, new in ((table, b"", b""), (misnamed, b"naming", b"na\xffing")):
        file.write_bytes(FORMATS[suffix](each).replace(old, new))
        with pytest.raises(InputError, match=r"a\.\w+.* cannot be read to its end"):
            list(READERS[suffix](File(file, file.name), ReadOptions(where={"n": ("1",)}), STOP))
