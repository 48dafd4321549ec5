"""Studies whose arms differ in the corpus: each distinct one once, and the same held-out text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from crammed.budget import Budget
from crammed.cli import studies
from crammed.config import TokenizerConfig
from crammed.data.corpus import Corpus
from crammed.data.preparing.cleaning import entities
from crammed.data.preparing.manifest import settings_json
from crammed.data.preparing.read import reading_job
from crammed.doctor import TINY
from crammed.errors import InputError
from crammed.rules.choosing import Asked
from crammed.runs.directory import RunDir
from crammed.study.result import StudyResult
from crammed.study.running import preparing, request, runner
from crammed.study.running.folder import config_of
from crammed.study.running.preparing import PlannedCorpora
from crammed.study.running.runner import run_study
from crammed.study.spec.arms import Study, load_study, read_study, with_words
from crammed.study.spec.corpora import Corpora, is_of_corpus, key_of
from crammed.terminal.progress import SILENT
from support.command import crammed
from support.study import write_study
from support.text import documents, write_jsonl

BUDGET = Budget.parse("6updates")
BASE = ["crammed", *TINY]
ARMS: dict[str, list[str]] = {"plain": [], "faster": ["optim.lr=2e-3"]}
OWN: dict[str, list[str]] = {
    **ARMS,
    "small": ["tokenizer.vocab_size=200"],
    "small-too": ["tokenizer.vocab_size=200", "optim.lr=2e-3"],
    "long": ["data.clean.min_characters=150"],
    "sorted": ["order.by=sentence-length"],
    "other": ["data.sources=[2]"],
    "both": ["data.sources=[1, {path: 2, weight: 2.0}]"],
}


def test_a_corpus_that_is_older_than_a_setting_goes_on_with_its_default(
    tmp_path: Path, texts: list[str]
) -> None:
    planned = PlannedCorpora(read_study(write_study(tmp_path, OWN, BASE)), texts, BUDGET)
    manifest = settings_json(planned.base.data, planned.base.tokenizer)
    del manifest["data"]["format"], manifest["data"]["sep"], manifest["data"]["clean"]["repeated"]
    manifest["data"]["documents"] = "blank-line"
    manifest["sources"] = [{"name": Path(text).name} for text in texts]
    corpus = Mock(Corpus, manifest=manifest)
    assert planned.differences(corpus) == []
    manifest["data"]["row_length"] = 7
    (different,) = planned.differences(corpus)
    assert different.startswith("data.row_length: 7 there")
    manifest["data"]["clean"]["repeated"] = {"unit": "line"}
    assert planned.differences(corpus)[0].startswith("data.clean.repeated: {'unit': 'line'} there")


@pytest.mark.parametrize(
    ("data", "there", "said"),
    [
        (["a.txt"], ["a.txt", "b.txt"], ["data.sources: 2 there, 1 here"]),
        (["a.txt", "hub:tales"], ["a.txt", "news"], ["data.sources: news there, tales here"]),
        (["hub:tales"], ["tales"], []),
        (["hub:tales", "hub:tales"], ["tales (1)", "tales (2)"], []),
        (["b.txt"], ["a.txt"], []),  # whatever a file is called, its content counts
    ],
)
def test_a_corpus_of_other_sources_is_of_another_study(
    tmp_path: Path, data: list[str], there: list[str], said: list[str]
) -> None:
    study = read_study(write_study(tmp_path, ARMS, BASE))
    planned = PlannedCorpora(study, data, BUDGET)
    manifest = settings_json(planned.base.data, planned.base.tokenizer)
    manifest["sources"] = [{"name": name} for name in there]
    assert planned.differences(Mock(Corpus, manifest=manifest)) == said


def planned_with(folder: Path, pipeline: str | None) -> PlannedCorpora:
    base = [*BASE, f"data.clean.entities={pipeline or 'null'}"]
    study = read_study(write_study(folder, ARMS, base))
    return PlannedCorpora(study, ["a.txt"], BUDGET)


@pytest.mark.parametrize(
    ("there", "here", "said"),
    [
        (None, "names", ["data.clean.entities: None there, names here"]),
        ("names", None, ["data.clean.entities: names there, None here"]),
        ("names", "names", []),
    ],
)
def test_a_pipeline_that_one_side_alone_has_makes_it_another_study(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    there: str | None,
    here: str | None,
    said: list[str],
) -> None:
    """Manifests leave it out while it has its default."""
    monkeypatch.setattr(entities, "without_folder", lambda named: named)
    base, other = (planned_with(tmp_path, name) for name in (here, there))
    manifest = settings_json(other.base.data, other.base.tokenizer)
    assert ("entities" in manifest["data"]["clean"]) == (there is not None)
    manifest["sources"] = [{"name": "a.txt"}]
    assert base.differences(Mock(Corpus, manifest=manifest)) == said


def test_the_vocabulary_of_a_given_tokenizer_is_not_the_studys(tmp_path: Path) -> None:
    study = read_study(write_study(tmp_path, ARMS, [*BASE, "tokenizer.file=x/tokenizer.json"]))
    planned = PlannedCorpora(study, ["a.txt"], BUDGET)
    manifest = settings_json(planned.base.data, planned.base.with_vocabulary(999).tokenizer)
    manifest["sources"] = [{"name": "a.txt"}]
    assert planned.differences(Mock(Corpus, manifest=manifest)) == []


@pytest.fixture
def texts(tmp_path: Path) -> list[str]:
    """Two files; the second repeats some of the first."""
    first, second = documents(300), documents(400, seed=1)
    return [
        str(write_jsonl(tmp_path / "first.jsonl", first)),
        str(write_jsonl(tmp_path / "second.jsonl", [*second, *first[:200]])),
    ]


def no_choice(asked: Asked, rows: float) -> TokenizerConfig:
    pytest.fail("nothing is open")


def made(name: str, texts: list[str], out: Path, choose: Any = no_choice) -> tuple[Study, Corpora]:
    """The study with the corpora of its arms, prepared as the command does it."""
    study = with_words(read_study(name), [])
    planned = preparing.planned_corpora(study, texts, BUDGET, out)
    load_study(name, planned, BUDGET)
    corpora = preparing.prepare_corpora(planned, out, choose, SILENT)
    return load_study(name, corpora, BUDGET), corpora


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(
    ("own", "message"),
    [
        ("data.text_field=title", r"arm x: first\.jsonl, line 1: no field 'title' \(it has: text"),
        ("data.sources=[{path: 2, text_field: body}]", r"arm x: second\.jsonl, .* no field 'body'"),
        ("data.sources=[gone.txt]", "arm x: .*gone.txt"),
    ],
)
def test_text_that_cannot_be_read_is_found_before_anything_starts(
    tmp_path: Path, texts: list[str], own: str, message: str, dry_run: bool
) -> None:
    name, out = write_study(tmp_path, {"plain": [], "x": [own]}, BASE), tmp_path / "out"
    with pytest.raises(InputError, match=message):
        studies.study(name, data=texts, budget=BUDGET, out=out, jobs=1, dry_run=dry_run)
    assert not out.exists()


def test_longer_rows_leave_the_tokens_of_an_update(tmp_path: Path, texts: list[str]) -> None:
    longer = ["data.row_length=64", "model.max_length=64"]
    arms = {
        "plain": [],
        "long": longer,
        "half": [*longer, "batch.rows*=0.5"],
        "own": [*longer, "batch.rows=5"],
    }
    name = write_study(tmp_path, arms, [*BASE, "batch.rows=12", "data.row_length=32"])
    study = load_study(name, PlannedCorpora(read_study(name), texts, BUDGET), BUDGET)
    rows = {
        arm: next(word for word in reversed(study.words(arm)) if word.startswith("batch.rows="))
        for arm in arms
    }
    assert {arm: int(word.partition("=")[2]) for arm, word in rows.items()} == {
        "plain": 12,
        "long": 6,
        "half": 3,
        "own": 5,
    }


def test_longer_rows_may_be_too_few_for_the_quantum_of_the_base(
    tmp_path: Path, texts: list[str]
) -> None:
    longer = ["data.row_length=64", "model.max_length=64"]
    base = [*BASE, "data.row_length=32", "batch.rows=8", "batch.adaptive.test=norm"]
    base = list({word.partition("=")[0]: word for word in [*base, "batch.quantum=4"]}.values())

    def arm(*words: str) -> dict[str, Any]:
        name = write_study(tmp_path, {"plain": [], "long": [*longer, *words]}, base)
        study = load_study(name, PlannedCorpora(read_study(name), texts, BUDGET), BUDGET)
        return dict(word.split("=") for word in study.words("long")[1:])

    with pytest.raises(InputError, match=r"arm long: recipe crammed: batch: adaptive .* rows=4 is"):
        arm()
    assert arm("batch.quantum=2")["batch.rows"] == "4"
    assert arm("batch.rows=16")["batch.rows"] == "16"


def test_arms_share_corpora_and_held_out_documents(
    tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, out, cleaned = write_study(tmp_path, OWN, BASE), tmp_path / "out", list[str]()
    real = reading_job.read

    def noting(job: reading_job.ReadJob) -> reading_job.Reading:
        cleaned.extend(part.name for part in job.parts)
        return real(job)

    monkeypatch.setattr(reading_job, "read", noting)
    study, corpora = made(name, texts, out)
    of = {arm: corpora.of(study.words(arm)) for arm in OWN}
    assert of["plain"] is of["faster"] is corpora.base
    assert of["small"] is of["small-too"]
    assert len(corpora.all) == len({each.sha256 for each in of.values()}) == 6
    assert len({each.heldout.read_bytes() for each in of.values()}) == 1
    assert of["sorted"].orders == ("sentence-length",)
    assert of["small"].vocab_size <= 200 < of["plain"].vocab_size
    assert [each["weight"] for each in of["both"].manifest["sources"]] == [1.0, 2.0]
    dropped = {each["step"]: each["dropped"] for each in of["other"].manifest["steps"]}
    assert dropped["held-out documents"] > 0
    # The text of the base, the filtered text, and nothing for the others, which have the same.
    assert sorted(cleaned) == sorted(2 * ["first.jsonl", "second.jsonl"])
    folders = {each.name for each in (out / "corpora").iterdir()}
    assert folders == {each.path.name for each in corpora.all}
    for arm in OWN:
        config = config_of(study, arm, corpora, BUDGET)
        assert config.corpus == of[arm].sha256
        assert config.batch.rows == 8


def test_corpora_that_are_there_are_not_prepared_again(
    tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arms = {"plain": [], "small": OWN["small"]}
    name, out = write_study(tmp_path, arms, BASE), tmp_path / "out"
    _, first = made(name, texts, out)
    monkeypatch.setattr(preparing, "prepare", lambda *_, **__: pytest.fail("prepared"))
    _, again = made(name, texts, out)
    assert [each.sha256 for each in again.all] == [each.sha256 for each in first.all]
    with pytest.raises(InputError, match=r"another study \(data.sources: 2 there, 1 here\)"):
        made(name, texts[:1], out)
    with pytest.raises(InputError, match=r"another study \(data.row_length: 32 there, 16 here\)"):
        made(write_study(tmp_path, arms, [*BASE, "data.row_length=16"]), texts, out)
    with Path(texts[0]).open("a") as file:
        file.write(json.dumps({"text": "One more."}) + "\n")
    Path(texts[1]).unlink()  # which says nothing about the other
    changed = r"1 file is new or changed since .* was prepared \(first.jsonl\): choose another"
    with pytest.raises(InputError, match=changed):
        made(write_study(tmp_path, arms, BASE), texts, out)


@pytest.fixture
def ran(
    tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., StudyResult]:
    """Runs a study of these arms in one folder, without training them."""
    monkeypatch.setattr(runner, "_train_all", lambda *_: None)

    def run(**arms: list[str]) -> StudyResult:
        file, out = write_study(tmp_path, {"plain": [], **arms}, BASE), tmp_path / "out"
        return request.run(request.Request(file, [], None, texts, BUDGET, 1, out, 1), SILENT)

    return run


def begin(tmp_path: Path, texts: list[str], arm: str) -> None:
    study, corpora = made(str(tmp_path / "s.yaml"), texts, tmp_path / "out")
    with RunDir.open(tmp_path / "out" / f"{arm}-0", config_of(study, arm, corpora, BUDGET)):
        pass


def test_words_about_text_may_be_written_otherwise_but_not_left_out(
    tmp_path: Path, texts: list[str], ran: Callable[..., StudyResult]
) -> None:
    pytest.importorskip("rensa")
    first = ran(near=["data.clean.near=0.8"])
    begin(tmp_path, texts, "near")
    again = ran(near=["data.clean.near=0.80"])
    assert again.arms["near"].corpus == first.arms["near"].corpus
    lost = r"another study \(arm near has data\.clean\.near=0\.80 there, and not here\)"
    with pytest.raises(InputError, match=lost):
        ran(near=["optim.lr=2e-3"])


def test_an_order_may_be_written_otherwise(
    tmp_path: Path, texts: list[str], ran: Callable[..., StudyResult]
) -> None:
    first = ran(sorted=["order={by: sentence-length}"])
    begin(tmp_path, texts, "sorted")
    again = ran(sorted=["order={by: 'sentence-length'}"])
    assert again.arms["sorted"].corpus == first.arms["sorted"].corpus
    with pytest.raises(InputError, match=r"arm sorted has order=\{by: .*\} there, and not here"):
        ran(sorted=["order.by=sentence-length"])


def test_a_study_goes_on_as_its_file_was_read(
    tmp_path: Path, ran: Callable[..., StudyResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = preparing.prepare_corpora

    def prepare(*given: Any) -> Corpora:
        more = {**ARMS, "small": ["tokenizer.vocab_size=200"]}
        write_study(tmp_path, more, BASE)  # while it prepares text
        return real(*given)

    monkeypatch.setattr(request, "prepare_corpora", prepare)
    assert {*ran(**ARMS).arms} == {*ARMS}


def test_a_vocabulary_that_follows_the_budget_is_chosen_once(
    tmp_path: Path, texts: list[str]
) -> None:
    asked: list[float] = []

    def choose(open_: Asked, rows: float) -> TokenizerConfig:
        asked.append(rows)
        return open_.config.tokenizer.model_copy(update={"vocab_size": 220})

    base = [word for word in TINY if not word.startswith("tokenizer.")]
    arms = {
        "plain": [],
        "small": ["tokenizer.vocab_size=200"],
        "same": ["tokenizer.vocab_size=220", "optim.weight_decay=0.5"],
    }
    study, corpora = made(
        write_study(tmp_path, arms, ["crammed", *base]), texts, tmp_path / "out", choose
    )
    assert len(asked) == 1
    assert corpora.base.manifest["tokenizer"]["vocab_size"] == 220
    assert corpora.of(study.words("same")) is corpora.base
    made(write_study(tmp_path, arms, ["crammed", *base]), texts, tmp_path / "out", choose)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ("data={sources: [2]}", r"arm x: write the sources as data\.sources=\[\.\.\.\]"),
        ("data.sources=[3]", "arm x: data.sources has 3, and --data names 2: count from 1"),
        ("data.clean.neer=0.8", "arm x: data.clean.neer: no such key; did you mean"),
        ("tokenizer.vocab_size=-1", "arm x: tokenizer.vocab_size: "),
        ("order.by=longest", "(?s)arm x: .*order.by"),
        ("optim.lrr=1", "arm x: .*did you mean optim.lr"),
        ("tokenizer.vocab_size*=0.5", "arm x: .*: a factor does not apply to text"),
    ],
)
def test_wrong_arms_are_refused_before_anything_is_prepared(
    tmp_path: Path, texts: list[str], own: str, message: str
) -> None:
    name = write_study(tmp_path, {"plain": [], "x": [own]}, BASE)
    with pytest.raises(InputError, match=message):
        made(name, texts, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_base_with_sources_of_its_own_is_refused(tmp_path: Path, texts: list[str]) -> None:
    for word in ("data.sources=[other.txt]", "data={sources: [other.txt], row_length: 64}"):
        name = write_study(tmp_path, ARMS, ["crammed", word])
        with pytest.raises(InputError, match="set twice, by --data and by the base of the study"):
            PlannedCorpora(read_study(name), texts, BUDGET)


def test_an_order_counts_however_it_is_written(tmp_path: Path, texts: list[str]) -> None:
    planned = PlannedCorpora(read_study(write_study(tmp_path, ARMS, BASE)), texts, BUDGET)
    for word in ("order.by=sentence-length", "order={by: sentence-length}"):
        made = planned.base.changed(["crammed", word])
        assert made.data.orders == ("sentence-length",)
        assert key_of(["crammed", word]) != key_of(["crammed"])


def test_a_recipes_file_says_nothing_about_the_corpus() -> None:
    assert not any(map(is_of_corpus, ("data.yaml", "tokenizer.yaml")))
    assert is_of_corpus("data.clean.exact=false")


def test_a_baseline_is_held_against_its_own_unigram_model(
    tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = write_study(tmp_path, {"plain": OWN["small"], "other": []}, BASE), tmp_path / "out"
    study, corpora = made(file, texts, out)
    own, base = (
        each.manifest["heldout"]["unigram_cross_entropy"]
        for each in (corpora.of(study.words("plain")), corpora.base)
    )
    assert own != base
    monkeypatch.setattr(runner, "_train_all", lambda *_: None)
    assert run_study(study, corpora, BUDGET, 1, out, 1, SILENT).unigram == own


def test_a_study_of_vocabularies_from_text(tmp_path: Path, texts: list[str]) -> None:
    """From the words that are typed to the losses in bits per character."""
    name = write_study(tmp_path, {"plain": [], "small": OWN["small"]}, BASE)
    words = ["--data", *texts, "--budget", "4updates", "--seeds", "1", "--json"]
    done = crammed("study", name, *words, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    arms = result["arms"]
    assert arms["plain"]["corpus"] == result["corpus"] != arms["small"]["corpus"]
    assert result["corpora"][result["corpus"]]["folder"] == "corpora/base"
    assert result["corpora"][arms["small"]["corpus"]]["vocab_size"] <= 200
    runs = {arm: each["runs"]["0"] for arm, each in arms.items()}
    for one in runs.values():
        assert one["bits_per_character@0.15"] > 0.0
        assert one["updates"] == 4
    assert runs["plain"]["parameters"] > runs["small"]["parameters"]
