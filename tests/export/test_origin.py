"""What a model card keeps of the model that another was made from: licence and name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from crammed.errors import InputError
from crammed.export.card import Metadata


def folder_with(folder: Path, card: str | None, **config: str) -> Path:
    """A Hugging Face folder, as far as its model card needs it."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    if card is not None:
        (folder / "README.md").write_text(card)
    return folder


@pytest.mark.parametrize(
    ("card", "written", "expected"),
    [
        ("---\nlicense: mit\n---\n", "owner/name", ("mit", "owner/name")),
        ("---\r\nlicense: mit\r\n---\r\n", "owner/name", ("mit", "owner/name")),
        ("---\nlicense: mit\nbase_model: owner/first\n---\n", "owner/name", ("mit", "owner/first")),
        ("---\nbase_model: [owner/first]\n---\n", "", (None, "owner/first")),
        ("---\nbase_model: [owner/first, owner/second]\n---\n", "", (None, None)),
        ("---\nbase_model: /home/me/model\n---\n", "runs/here", (None, None)),
        (f"---\nbase_model: owner/{'x' * 999}\n---\n", "", (None, f"owner/{'x' * 999}")),
        ("---\nlicense: mit\nday: 2026-99-99\n---\n", "../model", (None, None)),
        (None, "/home/me/model", (None, None)),
    ],
)
def test_a_local_folder_names_the_hub_but_no_folders(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    card: str | None,
    written: str,
    expected: tuple[str | None, str | None],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "here").mkdir(parents=True)
    folder = folder_with(tmp_path / "owner" / "model", card, _name_or_path=written)
    found = Metadata.inherited(folder)
    assert (found.license, found.base_model) == expected


def test_a_model_of_the_hub_is_named_and_its_card_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub")
    cached = folder_with(tmp_path / "models--owner--name" / "snapshots" / "0123", None)
    card = tmp_path / "README.md"
    card.write_text("---\nlicense: mit\nbase_model: owner/first\n---\n")
    asked: list[tuple[str, str]] = []

    def download(*given: str) -> str:
        asked.append(given)  # type: ignore[arg-type]
        return str(card)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    found = Metadata.inherited(cached)
    assert (found.license, found.base_model) == ("mit", "owner/name")
    assert asked == [("owner/name", "README.md")]

    def fail(*_: str) -> str:
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fail)
    assert Metadata.inherited(cached) == Metadata(base_model="owner/name")


def test_a_typed_licence_comes_before_that_of_the_source(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "model", "---\nlicense: mit\n---\n")
    assert Metadata.inherited(folder, "apache-2.0").license == "apache-2.0"
    with pytest.raises(InputError, match="--license is 'my own', not a code such as apache"):
        Metadata.inherited(folder, "my own")
