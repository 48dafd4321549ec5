"""Optional libraries: missing, broken, there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from crammed.errors import InputError
from crammed.extras import import_extra


@pytest.mark.parametrize("library", ["no_such_library", "no_such_library.part"])
def test_a_missing_library_is_named_with_its_extra(library: str) -> None:
    with pytest.raises(InputError, match=rf"^x needs {library}: pip install 'crammed\[data\]'$"):
        import_extra(library, "data", "x")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import no_such_part", "No module named 'no_such_part'"),
        ("raise ImportError('built for another Python\\nmore')", "built for another Python"),
    ],
)
def test_a_broken_library_is_not_to_be_installed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, why: str
) -> None:
    (tmp_path / "broken_library.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError) as raised:
        import_extra("broken_library", "data", "x", " or leave it out")
    said = f"x needs broken_library, which is installed but cannot be imported ({why})"
    assert str(raised.value) == f"{said} or leave it out"


def test_a_library_that_is_there_is_imported() -> None:
    assert import_extra("json", "data", "x") is sys.modules["json"]
