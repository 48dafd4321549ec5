from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from crammed.errors import InputError
from crammed.tasks.glue_data import glue_data_split
from crammed.tasks.layouts import FolderData, FoundSplit, open_data
from crammed.tasks.read import all_tasks, read_task, splits_in, tasks_in, training_splits
from crammed.tasks.task import Suite, load_suite
from support.samples import COMPRESS, FORMATS, fits, parquet
from support.tasks import suite_of

ROWS = [{"text": f"Number {n}, with a\ttab.", "label": str(n % 2)} for n in range(5)]


def find(root: Path, split: str = "train", *folders: str) -> FoundSplit | None:
    return FolderData(root).find(folders or ("mine",), split)


def texts(found: FoundSplit | None) -> list[str]:
    assert found is not None
    return [record["text"] for _, record in found.records()]


def save(file: Path, data: bytes) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file


def tsv(file: Path, *rows: Sequence[str]) -> Path:
    return save(file, "".join("\t".join(row) + "\n" for row in rows).encode())


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".tsv", ".parquet"])
def test_a_file_of_each_format(tmp_path: Path, suffix: str) -> None:
    rows = [row for row in [*ROWS, {"text": "No tab.", "label": "1"}] if fits(suffix, row["text"])]
    save(tmp_path / f"mine/train{suffix}", FORMATS[suffix](rows))
    assert texts(find(tmp_path)) == [row["text"] for row in rows]
    assert find(tmp_path, "test") is None


@pytest.mark.parametrize("compression", COMPRESS)
def test_text_in_every_compression(tmp_path: Path, compression: str) -> None:
    data = COMPRESS[compression](FORMATS[".jsonl"](ROWS))
    save(tmp_path / f"mine/train.jsonl{compression}", data)
    assert len(texts(find(tmp_path))) == len(ROWS)


@pytest.mark.parametrize("where", ["mine/", "mine/data/"])
def test_parts_in_the_hubs_layout_are_read_in_order(tmp_path: Path, where: str) -> None:
    for part in (1, 0, 2):
        save(
            tmp_path / f"{where}validation_m-{part:05d}-of-00003.parquet",
            parquet(ROWS[part : part + 1]),
        )
    assert texts(find(tmp_path, "validation_m")) == [row["text"] for row in ROWS[:3]]
    assert find(tmp_path, "validation") is None
    (tmp_path / where / "validation_m-00001-of-00003.parquet").unlink()
    with pytest.raises(
        InputError, match="lacks part 1 of 00003 of the split validation_m: download"
    ):
        find(tmp_path, "validation_m")
    save(tmp_path / where / "validation_m-00000-of-00001.parquet", parquet(ROWS))
    with pytest.raises(InputError, match="parts of 00001 and of 00003 for the split validation_m"):
        find(tmp_path, "validation_m")


def test_a_folder_for_each_split(tmp_path: Path) -> None:
    save(tmp_path / "mine/train/0000.parquet", parquet(ROWS[:2]))
    save(tmp_path / "mine/train/0001.parquet", parquet(ROWS[2:]))
    assert len(texts(find(tmp_path))) == 5


def test_a_folder_without_parquet_hides_no_parts(tmp_path: Path) -> None:
    save(tmp_path / "mine/train/notes.txt", b"none")
    assert find(tmp_path) is None
    save(tmp_path / "mine/train-00000-of-00001.parquet", parquet(ROWS))
    assert len(texts(find(tmp_path))) == 5


def test_two_files_for_one_part_are_refused(tmp_path: Path) -> None:
    for more in ("", "-0a1b"):
        save(tmp_path / f"mine/train-00000-of-00001{more}.parquet", parquet(ROWS))
    with pytest.raises(InputError, match="has two files for the same part of the split train"):
        find(tmp_path)


def test_other_spellings_of_splits_and_folders_are_found(tmp_path: Path) -> None:
    save(tmp_path / "My-Task/dev_a.jsonl", FORMATS[".jsonl"](ROWS))
    assert texts(find(tmp_path, "validation_a", "mytask"))
    assert find(tmp_path, "validation_b", "mytask") is None
    save(tmp_path / "mytask/dev_a.jsonl", FORMATS[".jsonl"](ROWS[:1]))
    assert len(texts(find(tmp_path, "validation_a", "mytask"))) == 1  # spelled exactly
    assert len(texts(find(tmp_path, "validation_a", "none", "mytask"))) == 1


@pytest.mark.parametrize("name", ["reviews/", "./reviews"])
def test_a_folder_may_be_named_as_a_path(tmp_path: Path, name: str) -> None:
    save(tmp_path / "reviews/train.jsonl", FORMATS[".jsonl"](ROWS))
    assert len(texts(find(tmp_path, "train", name))) == len(ROWS)


def test_a_split_may_be_a_files_whole_name(tmp_path: Path) -> None:
    save(tmp_path / "mine/reviews.csv", FORMATS[".csv"](ROWS))
    save(tmp_path / "mine/reviews.jsonl", FORMATS[".jsonl"](ROWS[:1]))
    assert len(texts(find(tmp_path, "reviews.csv"))) == 5


def test_two_files_for_one_split_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "mine/train.csv", FORMATS[".csv"](ROWS))
    save(tmp_path / "mine/train.jsonl.gz", gzip.compress(FORMATS[".jsonl"](ROWS)))
    with pytest.raises(InputError, match=r"has train.csv and train.jsonl.gz: keep the one"):
        find(tmp_path)


def test_the_only_tasks_splits_may_be_in_the_folder_itself(tmp_path: Path) -> None:
    save(tmp_path / "train.jsonl", FORMATS[".jsonl"](ROWS))
    assert find(tmp_path) is None
    alone = open_data(suite_of(), tmp_path)
    assert texts(alone.find(("mine",), "train"))
    assert alone.find(("hard",), "train") is None, "a split may have a folder of its own"
    save(tmp_path / "SST-2/train.jsonl", FORMATS[".jsonl"](ROWS))
    assert texts(find(tmp_path / "SST-2", "train", "sst2"))


def test_a_missing_split_is_reported_with_what_exists(tmp_path: Path) -> None:
    data = FolderData(tmp_path)
    assert "has no folder mine (it has no folders at all)" in data.missing(["mine"], "train")
    save(tmp_path / "other/train.jsonl", b"{}")
    assert "has no folder mine or my (it has: other)" in data.missing(["mine", "my"], "train")
    assert "other has no dev split, as .jsonl, .csv" in data.missing(["other"], "dev")
    assert "(it has: train.jsonl)" in data.missing(["other"], "dev")
    suite = load_suite("glue")
    with pytest.raises(InputError, match="none is not a folder of tasks"):
        open_data(suite, tmp_path / "none")
    with pytest.raises(InputError, match="is an address: download it and name its folder"):
        open_data(suite, Path("https://example.org/tasks"))
    with pytest.raises(InputError, match=r"holds no task of suite glue, .*folders cola, sst2"):
        tasks_in(suite, tmp_path)
    with pytest.raises(InputError, match="suite docs is not on the hub: name the folder"):
        open_data(load_suite("docs"), None)


def test_a_task_whose_folder_lacks_the_training_split_is_not_left_out_in_silence(
    tmp_path: Path,
) -> None:
    """That the data is in a folder called like a task says nothing of that task."""
    tasks: dict[str, Any] = {name: {"text": "text", "metric": "accuracy"} for name in "abc"}
    tasks["d"] = {"kind": "minimal-pairs", "scored": {"d": "x"}}
    suite, root = Suite.model_validate({"name": "s", "tasks": tasks}), tmp_path / "c"
    save(root / "a/train.csv", FORMATS[".csv"](ROWS))
    assert all_tasks(suite, root, None) == ["a"]
    said: list[str] = []
    for name, split, file in (("b", "train", "training.csv"), ("d", "x", "train.csv")):
        save(root / name / file, FORMATS[".csv"](ROWS))
        lacks = rf"{root}/{name} has no {split} split, as .* \(it has: {file}\)"
        mend = "rename its file, or remove the folder to leave the task out"
        with pytest.raises(InputError, match=f"^task {name}: {lacks}; {mend}$"):
            all_tasks(suite, root, None)
        before = tasks_in(suite, root)
        assert all_tasks(suite, root, said.append) == before
        assert re.fullmatch(f"note  task {name} is left out: {lacks}", said[-1])
        (root / name / file).rename(root / name / f"{split}.csv")
        assert all_tasks(suite, root, None) == [*before, name]
    assert len(said) == 2


@pytest.mark.parametrize("kind", ["misnamed", "link", "folder", "pipe"])
def test_an_only_task_whose_training_split_is_no_file_is_not_said_to_be_missing(
    tmp_path: Path, kind: str
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    file = folder / ("training.csv" if kind == "misnamed" else "train.csv")
    if kind == "misnamed":
        file.write_bytes(FORMATS[".csv"](ROWS))
    elif kind == "link":
        file.symlink_to("nowhere")
    else:
        (os.mkfifo if kind == "pipe" else os.mkdir)(file)
    has = file.name + " (no ordinary file)" * (kind != "misnamed")
    lacks = re.escape(f"(it has: {has}); rename its file")
    for say in (None, print):
        with pytest.raises(InputError, match=f"^task mine: {folder} has no train split.*{lacks}"):
            all_tasks(suite_of(), tmp_path, say)


Cells = tuple[str, ...]


def classic_tree(root: Path) -> None:
    """Two training rows, a test row and as few scored ones as do, as GLUE was first published."""
    head: Cells
    rows: list[Cells]
    quoted = 'He said " no'
    tsv(root / "CoLA/train.tsv", ("gj04", "1", "", quoted), ("gj04", "0", "*", "It sailor."))
    tsv(root / "CoLA/dev.tsv", ("gj04", "1", "", "The boat sank."), ("gj04", "0", "*", "Sank."))
    tsv(root / "CoLA/test.tsv", ("index", "sentence"), ("0", "Who knows?"))
    tsv(root / "SST-2/train.tsv", ("sentence", "label"), (quoted, "0"), ("good", "1"))
    tsv(root / "SST-2/dev.tsv", ("sentence", "label"), ("fine", "1"))
    tsv(root / "SST-2/test.tsv", ("index", "sentence"), ("0", "well"))
    head = ("\ufeffQuality", "#1 ID", "#2 ID", "#1 String", "#2 String")
    first, second = ("1", "11", "12", quoted, "He refused."), ("0", "13", "14", "A", "B")
    tsv(root / "MRPC/train.tsv", head, first, second)
    tsv(root / "MRPC/dev.tsv", head, ("1", "15", "16", "C", "D"), second)
    tsv(root / "MRPC/test.tsv", ("index", *head[1:]), ("0", "17", "18", "E", "F"))
    head = ("index", "genre", "old_index", "sentence1", "sentence2", "score")
    rows = [("0", "news", "5", "A", quoted, "5.000"), ("1", "news", "6", "A", "B", "0.600")]
    tsv(root / "STS-B/train.tsv", head, *rows)
    tsv(root / "STS-B/dev.tsv", head, *rows)
    tsv(root / "STS-B/test.tsv", head[:-1], rows[0][:-1])
    head = ("id", "qid1", "qid2", "question1", "question2", "is_duplicate")
    rows = [("9", "1", "2", quoted, "B", "0"), ("7", "broken"), ("4", "1", "2", "A", "B", "1")]
    tsv(root / "QQP/train.tsv", head, *rows)
    tsv(root / "QQP/dev.tsv", head, *rows)
    tsv(root / "QQP/test.tsv", ("id", "question1", "question2"), ("0", "A", "B"))
    head = ("index", "promptID", "sentence1", "sentence2", "label1", "gold_label")
    rows = [("0", "31", quoted, "B", "neutral", "neutral"), ("1", "32", "A", "B", "", "entailment")]
    tsv(root / "MNLI/train.tsv", head, *rows)
    for split in ("matched", "mismatched"):
        tsv(root / f"MNLI/dev_{split}.tsv", head, rows[0])
        tsv(root / f"MNLI/test_{split}.tsv", head[:4], rows[0][:4])
    tsv(root / "diagnostic/diagnostic.tsv", ("index", "sentence1", "sentence2"), ("0", "A", "B"))
    for name, columns in (("QNLI", ("question", "sentence")), ("RTE", ("sentence1", "sentence2"))):
        head = ("index", *columns, "label")
        rows = [("0", "A", quoted, "not_entailment"), ("1", "A", "B", "entailment")]
        tsv(root / f"{name}/train.tsv", head, *rows)
        tsv(root / f"{name}/dev.tsv", head, rows[0])
        tsv(root / f"{name}/test.tsv", head[:-1], rows[0][:-1])
    head = ("index", "sentence1", "sentence2", "label")
    tsv(root / "WNLI/train.tsv", head, ("0", "A", quoted, "1"), ("1", "A", "B", "0"))
    tsv(root / "WNLI/dev.tsv", head, ("0", "A", "B", "1"))
    tsv(root / "WNLI/test.tsv", head[:-1], ("0", "A", "B"))


def test_all_of_glue_data_is_read(tmp_path: Path) -> None:
    classic_tree(tmp_path)
    suite = load_suite("glue")
    assert tasks_in(suite, tmp_path) == list(suite.tasks)
    labels = {}
    for task in suite.tasks.values():
        data = read_task(task, tmp_path, suite)
        labels[task.name] = data.train.labels.tolist()
        assert data.scored.keys() == task.numbers.keys()
        assert data.test.keys() == task.test.keys()
        assert any('He said " no' in texts for texts in data.train.texts)
        for rows in data.test.values():
            assert [int(n) for n in rows.index] == [0]
    assert labels == {
        "cola": [1, 0],
        "sst2": [0, 1],
        "mrpc": [1, 0],
        "stsb": pytest.approx([5.0, 0.6]),
        "qqp": [0, 1],  # the broken row is known, and official sizes exclude it
        "mnli": [1, 0],
        "qnli": [1, 0],
        "rte": [1, 0],
        "wnli": [1, 0],
    }
    # train, validation and test of nine tasks, two of the latter for MNLI, and its diagnostic set
    assert len(splits_in(suite, tmp_path)) == 30


def test_one_folder_of_glue_data(tmp_path: Path) -> None:
    classic_tree(tmp_path)
    assert tasks_in(load_suite("glue"), tmp_path / "STS-B") == ["stsb"]


def test_mrpc_as_microsoft_published_it(tmp_path: Path) -> None:
    head = ("\ufeffQuality", "#1 ID", "#2 ID", "#1 String", "#2 String")
    rows = [(str(n % 2), str(n), str(n + 10), f"First {n}.", f"Second {n}.") for n in range(6)]
    tsv(tmp_path / "MRPC/msr_paraphrase_train.txt", head, *rows)
    tsv(tmp_path / "MRPC/msr_paraphrase_test.txt", head, rows[0])
    suite = load_suite("glue")
    with pytest.raises(
        InputError, match=r"lacks dev_ids.tsv, which lists the validation rows of msr_paraphrase"
    ):
        tasks_in(suite, tmp_path)
    (tmp_path / "MRPC/dev_ids.tsv").write_text("\n")
    with pytest.raises(InputError, match=r"dev_ids.tsv lists no validation rows: download it"):
        read_task(suite.tasks["mrpc"], tmp_path, suite)
    assert glue_data_split(tmp_path / "MRPC", ["validation_matched"]) is None
    tsv(tmp_path / "MRPC/dev_ids.tsv", ("2", "12"), ("5", "15"))
    data = read_task(suite.tasks["mrpc"], tmp_path, suite)
    assert [pair[0] for pair in data.scored["mrpc"].texts] == ["First 2.", "First 5."]
    assert len(data.train) == 4
    assert len(data.test["MRPC.tsv"]) == 1
    assert training_splits(suite, tmp_path).keys() == {"mrpc"}


def test_a_broken_row_of_glue_data_is_named(tmp_path: Path) -> None:
    classic_tree(tmp_path)
    tsv(tmp_path / "RTE/train.tsv", ("index", "sentence1", "sentence2", "label"), ("0", "A"))
    suite = load_suite("glue")
    with pytest.raises(InputError, match=r"RTE/train.tsv, line 2: 2 cells in a row of 4 columns"):
        read_task(suite.tasks["rte"], tmp_path, suite)


@pytest.fixture
def hub_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """A suite whose repository is a folder in the hub's layout."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    save(tmp_path / "set/one/train-00000-of-00001.parquet", parquet(ROWS))
    save(tmp_path / "set/one/validation-00000-of-00001.parquet", parquet(ROWS[:3]))
    for split in ("train", "validation"):
        file = tmp_path / f"set/bad/{split}-00000-of-00001.parquet"
        save(file, parquet([{"text": 3, "label": "1"}]))
    cards = [
        {
            "config_name": name,
            "data_files": [
                {"split": split, "path": f"{name}/{split}-*"} for split in ("train", "validation")
            ],
        }
        for name in ("one", "bad")
    ]
    save(tmp_path / "set/README.md", f"---\nconfigs: {json.dumps(cards)}\n---\n".encode())
    tasks = {
        "bad": {"text": "text", "metric": "accuracy", "labels": 2},
        "mine": {"text": "text", "metric": "f1", "folder": "one", "test": {"Mine.tsv": "test"}},
        "gone": {"text": "text", "metric": "f1"},
    }
    return Suite.model_validate({"name": "s", "hub": str(tmp_path / "set"), "tasks": tasks})


def test_a_suite_of_the_hub(hub_suite: Suite) -> None:
    assert tasks_in(hub_suite, None) == ["bad", "mine", "gone"]
    data = read_task(hub_suite.tasks["mine"], None, hub_suite)
    assert (len(data.train), len(data.scored["mine"])) == (5, 3)
    assert data.train.texts[1] == (ROWS[1]["text"],)
    assert data.test == {}
    assert data.sha256 == read_task(hub_suite.tasks["mine"], None, hub_suite).sha256
    with pytest.raises(InputError, match=r"set/gone cannot be opened: .*gone"):
        read_task(hub_suite.tasks["gone"], None, hub_suite)
    with pytest.raises(InputError, match=r"set/bad, train, row 1: column 'text' holds a number"):
        read_task(hub_suite.tasks["bad"], None, hub_suite)


def test_a_suite_of_the_hub_whose_repository_was_converted(
    tmp_path: Path, hub_suite: Suite
) -> None:
    save(tmp_path / "copy/one/train/0000.parquet", parquet(ROWS))
    save(tmp_path / "copy/one/validation/0000.parquet", parquet(ROWS[:2]))
    suite = hub_suite.model_copy(update={"hub": str(tmp_path / "copy"), "converted": True})
    data = read_task(suite.tasks["mine"], None, suite)
    assert (len(data.train), len(data.scored["mine"])) == (5, 2)


def test_the_folders_of_a_suite_in_several_data_sets(tmp_path: Path, hub_suite: Suite) -> None:
    questions = [{"text": row["text"], "coarse_label": int(row["label"])} for row in ROWS]
    save(tmp_path / "copy/default/train/0000.parquet", parquet(questions))
    save(tmp_path / "copy/default/test/0000.parquet", parquet(questions[:2]))
    small = load_suite("small")
    assert isinstance(small.hub, dict)
    trec = small.hub["trec"].model_copy(update={"repository": str(tmp_path / "copy")})
    one = {"repository": str(tmp_path / "set"), "config": "one"}
    tasks = {
        "trec": small.tasks["trec"].model_dump(exclude={"name"}),
        "one": {"text": "text", "metric": "accuracy"},
        "elsewhere": {"text": "text", "metric": "accuracy"},
    }
    suite = {"name": "s", "hub": {"trec": trec.model_dump(), "one": one}, "tasks": tasks}
    found = Suite.model_validate(suite)
    data = read_task(found.tasks["trec"], None, found)
    assert (len(data.train), len(data.scored["trec"])) == (5, 2)
    assert data.train.texts[1] == (ROWS[1]["text"],)
    assert list(data.train.labels) == [int(row["label"]) for row in ROWS]
    assert len(read_task(found.tasks["one"], None, found).train) == 5
    assert tasks_in(found, None) == ["trec", "one"]
    with pytest.raises(InputError, match="suite s does not say where elsewhere is on the hub"):
        read_task(found.tasks["elsewhere"], None, found)
    other = Suite.model_validate({**suite, "hub": {"one": {**one, "columns": {"text": "label"}}}})
    changed = read_task(other.tasks["one"], None, other)
    assert changed.train.texts[1] == ("1",)
    assert changed.sha256 != read_task(found.tasks["one"], None, found).sha256
    hard = {"scored": {"one": "validation", "hard": {"split": "validation", "folder": "hard"}}}
    tasks = {"one": {**tasks["one"], **hard, "folder": ["one", "other"]}}
    there = {"name": "s", "hub": {"other": one, "hard": one}, "tasks": tasks}
    found = Suite.model_validate(there)
    assert [*read_task(found.tasks["one"], None, found).scored] == ["one", "hard"]
    with pytest.raises(ValueError, match="hub: no folder 'three'"):
        Suite.model_validate({**suite, "hub": {"three": one}})
    with pytest.raises(ValueError, match="converted: write it below each folder of hub"):
        Suite.model_validate({**suite, "converted": True})


def test_every_folder_of_the_small_suite_is_on_the_hub() -> None:
    suite = load_suite("small")
    assert isinstance(suite.hub, dict)
    assert {task.folders[0] for task in suite.tasks.values()} == set(suite.hub)
