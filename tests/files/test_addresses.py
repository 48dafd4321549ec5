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


@pytest.mark.parametrize("name", ["C#.txt", "a?.txt", "part-?"])
def test_only_on_the_web_a_query_or_a_fragment_ends_the_path(name: str) -> None:
    assert without_secrets(f"s3://key:secret@bucket/{name}") == f"s3://bucket/{name}"
    assert last_part(f"s3://bucket/{name}") == name
    assert name not in without_secrets(f"HTTPS://host/{name}")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("http://[foo/a", r"http://\[foo/a is not an address: \[foo is .*; write http://NAME/a$"),
        ("s3://me:secret@[x", r"^s3://\[x is not an address: .*; write s3://NAME$"),
        ("https://[::1/a?sign=secret", r"^https://\[::1/a is not an address"),
    ],
)
def test_what_is_no_address_is_said_in_one_line(address: str, said: str) -> None:
    for part in (without_secrets, last_part):
        with pytest.raises(InputError, match=said) as caught:
            part(address)
        assert "secret" not in str(caught.value)


def test_nothing_is_made_at_an_address(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--out is an address, and results are written to this"):
        check_vacant(Path("s3://bucket/corpus"), "--out")
    check_vacant(tmp_path / "s3:" / "corpus", "--out")
