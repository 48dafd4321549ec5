"""Arrow arrays made from buffers, and numpy arrays of theirs.

`pyarrow.array`, `pyarrow.scalar` and `to_numpy` would import pandas where that is installed, which
takes each process half a second and 40 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def strings(encoded: Sequence[bytes]) -> pa.LargeStringArray:
    """An array of texts in UTF-8."""
    ends = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)), out=ends[1:])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.large_string(), len(encoded), buffers)


def strings_of(texts: Sequence[str]) -> pa.LargeStringArray:
    """An array of texts."""
    return strings([text.encode() for text in texts])


def integers(values: NDArray[np.int64]) -> pa.Int64Array:
    """An array of integers, which shares their memory."""
    values = np.ascontiguousarray(values, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def numbers_in(array: pa.Array) -> NDArray[Any]:
    """The numbers or truth values in an array without nulls, read-only."""
    if pa.types.is_boolean(array.type):
        return np.from_dlpack(array.cast(pa.uint8())).view(np.bool_)
    return np.from_dlpack(array)


def one_array(chunked: pa.ChunkedArray) -> Any:
    """The same values in a single array."""
    return chunked.combine_chunks() if chunked.num_chunks != 1 else chunked.chunk(0)
