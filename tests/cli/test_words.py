"""What the verbs say: the next command, what was written, and how many of it there are."""

from __future__ import annotations

import ast
import io
import re
import shlex
import shutil
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any, get_args

import pytest

import crammed
from crammed.budget import Budget
from crammed.cli import corpora, exporting, machine, models, training
from crammed.cli.models import _score_parts
from crammed.cli.options import DataOption, arguments
from crammed.data.corpus import Corpus
from crammed.doctor import TINY
from crammed.errors import InputError
from crammed.evaluation.backbones.spec import local_digest
from crammed.evaluation.scores.table import cut_text, longest_sequence
from crammed.files.writing import write_json
from crammed.formats.documents import READERS
from crammed.interface import lines
from crammed.pipeline import GivenTasks, run_everything
from crammed.pretraining import result
from crammed.quantity import counted, logits_text, progress_rate
from crammed.rules.choosing import Asked
from crammed.terminal.progress import SILENT, Progress
from crammed.terminal.table import show
from support.models import untrained
from support.scores import BLIMP, HELDOUT
from support.text import documents, tiny, write_jsonl

FINISHED = Path(__file__).parents[1] / "fixtures" / "2026-11-21" / "finished"


@pytest.mark.parametrize(
    ("words", "budget", "following"),
    [
        (TINY, None, " --budget 24h"),
        (("crammed-2022", *TINY), "2h 30m", " --budget '2h 30m'"),
        ((*TINY, "budget.limit=3e5tok"), None, " --budget 3e5tok"),
    ],
)
def test_after_preparing_the_next_command_has_the_same_recipe_and_budget(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    budget: str | None,
    following: str,
) -> None:
    text = write_jsonl(tmp_path / "text.jsonl", documents(300))
    out = tmp_path / "corpus"
    limit = None if budget is None else Budget.parse(budget)
    corpora.prepare([*words], [str(text)], limit, out, None)
    own = [word for word in words if not word.startswith(("data.", "tokenizer.", "budget.limit"))]
    expected = f"crammed pretrain {' '.join(own)} --corpus {out}{following}"
    assert capsys.readouterr().out.splitlines()[-1].split() == ["next", *expected.split()]


def test_the_model_can_be_tried_without_transformers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lines, "find_spec", lambda _: None)
    label, command = lines.next_line(result(FINISHED))
    assert label == "next"
    *_, code = shlex.split(str(command))
    exec(code)
    ((best, probability), *_) = ast.literal_eval(capsys.readouterr().out)[0]
    assert isinstance(best, str)
    assert 0.0 < probability < 1.0


@pytest.mark.parametrize("name", ["plain", "it's", 'a "b"', "$(touch x)", "`touch x`", "a\\b"])
def test_code_for_a_shell_is_one_word(name: str) -> None:
    code = f"print({name!r})"
    quoted = lines._quoted(code)
    assert shlex.split(quoted) == [code]
    assert quoted.startswith("'") or not re.search(r"[$`]", quoted)


def evaluated(**values: Any) -> str:
    """What `crammed evaluate` prints."""
    stream = io.StringIO()
    show(_score_parts({"folder": "scores", "protocol": {}, "max_length": 128, **values}), stream)
    return stream.getvalue()


def test_scores_without_fine_tuning_have_words_for_names_and_no_predictions() -> None:
    few = {"pairs": 1, "paradigms": 1, "official": False}
    said = evaluated(suites={"heldout": {**HELDOUT, "rows": 1}, "blimp": {**BLIMP, **few}})
    assert said.startswith(
        "held-out loss\n"
        "2.512 nats per masked token with 15 % masked, 2.700 with 25 %\n"
        "0.800 bits per character with 15 % masked, 0.850 with 25 %\n"
        "measured on 1 row of 128 tokens; 0.210 tokens per character\n"
    )
    assert "BLiMP, 1 paradigm, 1 pair: partial" in said
    alone = {"document_loss@0.15": 3.25, "document_loss@0.25": 3.75}
    parts = {"by_position@0.15": [3.5, None, *[3.0] * 6]}
    said = evaluated(suites={"heldout": {**HELDOUT, **alone, **parts}})
    assert "3.250 nats on documents by themselves, 3.750 with 25 %\n" in said
    assert "in each eighth of a row: 3.500, none, 3.000, " in said
    own = {"tokens": 9000, "loss@0.15": 2.25, "bits_per_character@0.15": 0.75}
    none = {"tokens": 1, "loss@0.15": None}
    said = evaluated(suites={"heldout": {**HELDOUT, "by_source": {"wiki": own, "news": none}}})
    assert "wiki: 2.250 nats (0.750 bits per character) on 9,000 tokens\nnews: no loss" in said
    assert said.endswith("\nscores are in scores\n")
    assert evaluated(suites={"glue": {"tasks": {}, "means": []}}).endswith(
        "\nscores and predictions are in scores\n"
    )


@pytest.mark.parametrize(
    ("missing", "words"),
    [(["AX.tsv", "b"], "; it lacks AX.tsv, b, which the leaderboard expects"), ([], "")],
)
def test_a_submission_is_said_to_be_written(missing: list[str], words: str) -> None:
    said = evaluated(suites={}, submission="mine.zip", missing=missing)
    assert f"the submission is in mine.zip{words}\n" in said


def test_sequences_that_were_cut_are_counted_with_the_length_they_were_cut_to() -> None:
    cut = {"cut": {"train": 3, "other": 0, "reviews": 1000}}
    assert longest_sequence({"max_length": 128}, {"max_length": 64}) == 64
    assert cut_text(cut, 64) == "cut to 64 tokens: 3 sequences of train, 1,000 of reviews"
    assert cut_text({"cut": {"train": 1}}, None) == "cut: 1 sequence of train"
    assert cut_text({"cut": {"train": 0}}, 64) == ""


def test_one_of_a_thing_is_not_many() -> None:
    said = ["0 tasks", "1 task", "2 tasks", "1,000 tasks"]
    assert [counted(n, "task") for n in (0, 1, 2, 1000)] == said
    with Progress(stream := io.StringIO()) as progress:
        list(progress.track("scoring", ["rte"], 1, unit="task"))
    assert stream.getvalue().startswith("scoring  1 task  (")


@pytest.mark.parametrize(
    ("difference", "words"),
    [
        (0.0, "transformers computes the same logits"),
        (1.24e-6, "transformers computes the same logits to within 1.2e-06"),
        (None, "not checked, because transformers is not installed"),
    ],
)
def test_logits_that_are_equal_are_said_to_be(difference: float | None, words: str) -> None:
    assert logits_text(difference) == words


def test_an_export_is_described_in_words(
    tmp_path: Path, corpus: Corpus, capsys: pytest.CaptureFixture[str]
) -> None:
    untrained(corpus.tokenizer, tiny("crammed-2022").model).save(tmp_path / "final")
    exporting.export(tmp_path, tmp_path / "out")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"model   {tmp_path / 'out'}"
    assert lines[1] == "format  custom"
    assert lines[2].startswith("        not modernbert: ")
    assert lines[-1].startswith("check   transformers computes the same logits")


def test_what_the_model_card_of_an_export_is_told(tmp_path: Path) -> None:
    config = tiny(data={"clean": {"languages": ["en"]}})
    shutil.copytree(FINISHED, tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text(config.model_dump_json())
    exporting.export(tmp_path / "run", tmp_path / "one", license="mit")
    exporting.export(tmp_path / "run", tmp_path / "two", language=["de", "fr"])
    one, two = ((tmp_path / name / "README.md").read_text() for name in ("one", "two"))
    assert 'license: "mit"\nlanguage: ["en"]\n' in one
    assert "model-index:" in one
    assert 'language: ["de", "fr"]\n' in two
    with pytest.raises(InputError, match=r"--int8 is for model\.onnx only: add --onnx"):
        exporting.export(tmp_path / "run", tmp_path / "three", int8=True)
    assert not (tmp_path / "three").exists()


def test_the_doctor_says_what_was_chosen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = {"device": "a CPU", "because": ["cpu: there is no GPU", "float32: as configured"]}
    monkeypatch.setattr("crammed.doctor.examine", lambda progress: seen)
    machine.doctor()
    said = "device  a CPU\nchosen  cpu: there is no GPU\n        float32: as configured\n"
    assert capsys.readouterr().out == said


@pytest.mark.parametrize(
    "verb",
    [
        *(corpora.prepare, training.run, training.pretrain, training.adapt, training.decide),
        *(models.evaluate, models.finetune, models.embed),
    ],
)
def test_verbs_have_the_options_of_their_functions(verb: Callable[..., None]) -> None:
    given: dict[str, Any] = dict.fromkeys(signature(verb).parameters, "x")
    own = ("compare", "out") if verb is models.evaluate else ()
    if "words" in given:
        given["words"] = ["demo", "seed=1"]
    taken = signature(getattr(crammed, verb.__name__)).parameters
    assert arguments(given, *own).keys() == taken.keys()


def test_the_help_of_data_lists_every_format() -> None:
    listed = get_args(DataOption)[1].help.split(";")[0].split()
    assert set(READERS) <= {word.strip("(),") for word in listed}


def test_a_run_without_tasks_leaves_no_folder_of_scores(tmp_path: Path) -> None:
    text = write_jsonl(tmp_path / "text.jsonl", documents(300))
    config = tiny(budget={"limit": "1updates"}, data={"sources": [str(text)]})
    result = run_everything(Asked(config), tmp_path / "run", None, None, SILENT)
    assert result["tasks"] == {}
    assert not (tmp_path / "run" / "evaluation").exists()


@pytest.mark.parametrize(
    ("task", "given", "said"),
    [
        ("rte", False, r"no data is named for tasks rte: name their folder with --glue DIR \("),
        ("second", True, "suite mine on the hub has no task second: it has first"),
    ],
)
def test_tasks_without_data_are_refused(tmp_path: Path, task: str, given: bool, said: str) -> None:
    own = "{text: text, metric: accuracy}"
    (tmp_path / "mine.yaml").write_text(
        f"hub: {{first: {{repository: someone/first}}}}\ntasks: {{first: {own}, second: {own}}}\n"
    )
    tasks = GivenTasks.of(str(tmp_path / "mine.yaml"), "hub") if given else None
    text = write_jsonl(tmp_path / "text.jsonl", documents(9))
    data = {"sources": [str(text)]}
    config = tiny(budget={"limit": "1updates"}, data=data, finetune={"tasks": [task]})
    with pytest.raises(InputError, match=said):
        run_everything(Asked(config), tmp_path / "run", None, tasks, SILENT)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "name the data to evaluate on with --data, or another model with --compare"),
        ({"compare": "other", "tasks": "rte"}, "--tasks needs the data to evaluate on: add --data"),
        (
            {"compare": "other", "untrained_in": Path("t")},
            "--untrained-in needs the data to evaluate on",
        ),
        ({"compare": "other", "untrained": False}, "--no-untrained needs the data to evaluate on"),
        ({"compare": "other", "trust_remote_code": True}, "--trust-remote-code needs the data to"),
        ({"compare": "other", "dtype": "float32"}, "--dtype needs the data to evaluate on"),
    ],
)
def test_options_that_need_data_are_refused_without(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        models.evaluate("one", **options)


def test_a_model_to_compare_with_that_has_no_scores_is_refused_before_the_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="holds no evaluation"):
        models.evaluate("one", data="where-no-data-is", compare="other")


def test_scores_of_another_model_are_not_compared_as_those_of_the_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model_folders: dict[str, Path]
) -> None:
    """The last two names of their folders are the same, and so is the folder of their scores."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    one, two = (tmp_path / name / "out" / "checkpoint-500" for name in ("exp1", "exp2"))
    for folder, family in ((one, "bert"), (two, "roberta")):
        shutil.copytree(model_folders[family], folder)
    about = {"model": {"name": "checkpoint-500", "sha256": local_digest(two)}, "protocol": {}}
    write_json(Path("evaluations/out-checkpoint-500/evaluation.json"), about)
    with pytest.raises(InputError, match=r"holds scores of another model, .*, not of \S*exp1"):
        models.evaluate(str(one), compare="other")


def test_the_speed_of_a_short_text_is_not_zero() -> None:
    assert progress_rate(23_456, "characters", 1.0) == "23,456 characters, 23.5 k per second"
    assert progress_rate(2_345_678, "bytes", 0.5) == "2,345,678 bytes, 4.69 M per second"
