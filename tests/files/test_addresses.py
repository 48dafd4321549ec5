"""Addresses, and what is not to be taken for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from crammed.errors import InputError
from crammed.files.addresses import is_address, last_part, without_secrets
from crammed.files.folders import check_vacant


def test_addresses_and_their_parts() -> None:
    assert is_address("s3://bucket/texts")
    assert not is_address("c:/texts")
    assert last_part("https://me:secret@host/a/my%20text.jsonl.gz?sign=x") == "my text.jsonl.gz"
    assert last_part("s3://bucket/") == "bucket"
    assert without_secrets("https://me:secret@host:80/a.txt?sign=x#y") == "https://host:80/a.txt"


def test_nothing_is_made_at_an_address(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--out is an address, and results are written to this"):
        check_vacant(Path("s3://bucket/corpus"), "--out")
    check_vacant(tmp_path / "s3:" / "corpus", "--out")
