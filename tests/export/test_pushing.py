"""`crammed export --push`, with a fake of the hub's client, and what its model cards say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from crammed.cli.exporting import export
from crammed.errors import InputError
from crammed.export.card import Metadata, with_metadata
from support.pages import front_matter

pytest.importorskip("huggingface_hub")
FIXTURES = Path(__file__).parents[1] / "fixtures" / "2026-11-21"
NAME = "somebody/encoder"


class Hub:
    """A hub that keeps what is uploaded.

    Attributes:
        calls: what was asked for, and with which values.
        refuses: the function that fails, with `fault`.
    """

    fault = OSError("401 Client Error.\nInvalid credentials")

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls = folder, list[tuple[str, dict[str, Any]]]()
        self.refuses = ""

    def _asked(self, what: str, options: dict[str, Any]) -> None:
        self.calls.append((what, options))
        if what == self.refuses:
            raise self.fault

    def whoami(self) -> None:
        self._asked("whoami", {})

    def create_repo(self, **options: Any) -> str:
        self._asked("create_repo", options)
        return f"https://hub.example/{options['repo_id']}"

    def upload_folder(self, **options: Any) -> None:
        self._asked("upload_folder", options)
        shutil.copytree(options["folder_path"], self.folder)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub(tmp_path / "hub")
    client = type("Client", (), {"__new__": lambda _: hub})  # libraries name it in annotations
    monkeypatch.setattr("huggingface_hub.HfApi", client)
    return hub


def test_a_run_is_exported_and_uploaded(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    export(FIXTURES / "finished", push=NAME, license="mit", as_json=True)
    values = json.loads(capsys.readouterr().out)
    assert values["pushed"] == f"https://hub.example/{NAME}"
    assert "export_dir" not in values
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= {
        file.name for file in hub.folder.iterdir()
    }
    assert front_matter(hub.folder)["license"] == "mit"
    assert [what for what, _ in hub.calls] == ["whoami", "create_repo", "upload_folder"]
    assert hub.calls[1][1] == {"repo_id": NAME, "private": True, "exist_ok": True}
    assert not Path(hub.calls[2][1]["folder_path"]).exists()


def test_other_folders_are_uploaded_as_they_are(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "task.json").write_text("{}")
    with pytest.raises(InputError, match="is taken as it is: leave out --license"):
        export(kept, push=NAME, license="mit")
    assert hub.calls == []
    export(kept, push=NAME)
    assert capsys.readouterr().out == f"pushed  https://hub.example/{NAME}\n"
    assert [file.name for file in hub.folder.iterdir()] == ["task.json"]


@pytest.mark.parametrize("refuses", ["whoami", "create_repo", "upload_folder"])
def test_a_hub_that_refuses_is_one_line(hub: Hub, refuses: str, tmp_path: Path) -> None:
    hub.refuses = refuses
    with pytest.raises(InputError) as raised:
        export(FIXTURES / "finished", tmp_path / "export", push=NAME)
    made = refuses != "whoami"  # else nobody waits for nothing
    assert (tmp_path / "export").exists() == made
    assert (
        str(raised.value)
        == (
            f"--push {NAME}: the hub refused (401 Client Error); log in with hf auth login, with a "
            "token that may write there"
        )
        + made * f"; {tmp_path / 'export'} is made: repeat the command without --to"
    )
    with pytest.raises(InputError, match=r"a token that may write there$"):
        export(FIXTURES / "finished", push=NAME)
    hub.refuses = ""
    export(FIXTURES / "finished", push=NAME)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("[Errno -2] Name unknown", r"the upload failed \(\[Errno -2\] Name unknown\); try again$"),
        ("503 Server Error.", r"the upload failed \(503 Server Error\); try again$"),
        ("403 Forbidden", r"the hub refused \(403 Forbidden\); log in with hf auth login"),
        ("Token is required", r"the hub refused \(Token is required\); log in with hf auth login"),
    ],
)
def test_logging_in_is_advised_only_where_it_helps(hub: Hub, fault: str, said: str) -> None:
    hub.refuses, hub.fault = "whoami", OSError(fault)
    with pytest.raises(InputError, match=said):
        export(FIXTURES / "finished", push=NAME)


def test_names_that_are_none(hub: Hub) -> None:
    with pytest.raises(
        InputError, match=r"^--push encoder: name a model on the hub as OWNER/NAME$"
    ):
        export(FIXTURES / "finished", push="encoder")


def adapted(folder: Path) -> Path:
    """A finished run that adapted somebody's model, whose card names a licence."""
    shutil.copytree(FIXTURES / "finished", folder)
    shutil.rmtree(folder / "final")
    summary = json.loads((folder / "summary.json").read_text())
    summary["adapted"] = {"model": "bert", "sha256": "0", "random_weights": 0, "heldout": {}}
    (folder / "summary.json").write_text(json.dumps(summary))
    card = folder / "export" / "README.md"
    metadata = Metadata("gpl-3.0", base_model="owner/bert")
    card.write_text(with_metadata(card.read_text(), metadata))
    return folder


def test_the_card_of_an_adapted_model_names_licence_and_scores(tmp_path: Path, hub: Hub) -> None:
    run = adapted(tmp_path / "run")
    export(run, tmp_path / "inherited")
    export(run, push=NAME, license="mit")
    assert front_matter(tmp_path / "inherited")["license"] == "gpl-3.0"
    assert front_matter(hub.folder)["license"] == "mit"
    assert front_matter(hub.folder)["base_model"] == "owner/bert"
    (index,) = front_matter(tmp_path / "inherited")["model-index"]
    assert [each["dataset"]["name"] for each in index["results"]] == [
        "stsb (partial)",
        "rte (partial)",
    ]
    body = (run / "export" / "README.md").read_text().split("---\n", 2)[2]
    assert (hub.folder / "README.md").read_text().endswith(body)
    with pytest.raises(InputError, match="is taken as it is: leave out --onnx"):
        export(run, tmp_path / "onnx", onnx=True)


@pytest.mark.parametrize(
    ("score", "kind"),
    [
        ({"metric": "accuracy"}, "text-classification"),
        ({"metric": "f1 of spam", "kind": "multi-label"}, "text-classification"),
        ({"metric": "pearson and spearman"}, "text-scoring"),  # of an older version
        ({"metric": "rmse", "kind": "regression"}, "text-scoring"),
        ({"metric": "span-f1", "kind": "tokens"}, "token-classification"),
        ({"metric": "accuracy", "kind": "choice"}, "multiple-choice"),
    ],
)
def test_the_hub_is_told_the_kind_of_each_task(score: dict[str, Any], kind: str) -> None:
    scores = {"mine": {"tasks": {"task": {**score, "median": 80.0}}}}
    values = yaml.safe_load("\n".join(Metadata(scores=scores).lines()).split("---\n")[1])
    assert values["model-index"][0]["results"][0]["task"] == {"type": kind}


@pytest.mark.parametrize(
    ("card", "license"),
    [
        ("---\nlicense: mit\n---\n# A model\n", "mit"),
        ("---\r\nlicense: mit\r\n---\r\n\r\n# A model\r\n", "mit"),
        ("---\nlicense: [mit]\n---\n", None),
        ("---\nlicense: [mit\n---\n", None),
        ("---\nlicense: my own\n---\n", None),
        ("# A model\n---\nlicense: mit\n---\n", None),
        ("", None),
    ],
)
def test_the_licence_of_others(card: str, license: str | None) -> None:
    assert Metadata.stated(card).license == license
    assert with_metadata(card, Metadata("mit")).count('license: "mit"') == 1
