from __future__ import annotations

import io
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from crammed.choosing import Asked
from crammed.data.statistics import Statistics
from crammed.errors import InputError
from crammed.evaluation.protocol import load_protocol
from crammed.evaluation.scores.published import published, published_beside
from crammed.evaluation.scores.table import (
    Printed,
    blimp_table,
    comparison_tables,
    score_tables,
    show,
)
from crammed.files import read_json, write_json
from crammed.pipeline import run_everything
from crammed.progress import SILENT, Progress
from crammed.quantity import beside_unigram, quantity
from crammed.report.figures import loss_figure
from crammed.report.page import write_report
from crammed.rundir import RunDir
from support.corpora import numbered_files, write_corpus
from support.text import documents, tiny, write_jsonl


class _Balanced(HTMLParser):
    """Fails on a tag that is closed out of order."""

    VOID = ("meta", "br", "path", "use", "link")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def score(median: float, **fields: Any) -> dict[str, Any]:
    """A score on data of official size."""
    return {
        "metric": "f1",
        "seeds": [median - 1, median - 0.5, median, median + 1, median + 2],
        "median": median,
        "spread": 3.0,
        "interval": [median - 3, median + 3],
        "also": {"accuracy": 71.25},
        "rows": {"train": 3668, "validation": 408},
        "official": True,
        "cut": {"train": 3, "validation": 0},
        "untrained": {"seeds": [40.5], "median": 40.5, "spread": 0.0, "interval": [38.0, 42.0]},
        **fields,
    }


def mean(name: str, *of: str, **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "of": list(of),
        "value": 66.6,
        "interval": [60.0, 70.0],
        "partial": False,
        **fields,
    }


GLUE = {
    "tasks": {
        "mrpc": score(88.1),
        "rte": score(55.2),
        "qqp": score(80.0, official=False, official_rows={"train": 363846, "validation": 408}),
        "cola": {"metric": "matthews", "failed": "line 4: no column <sentence>"},
        "stsb": score(60.0, interval=None, untrained={"failed": "all predictions are 1"}),
    },
    "means": [
        mean("mean of mrpc, rte, qqp", "mrpc", "rte", "qqp", partial=True, failed=["cola"]),
        mean("GLUE-2", "mrpc", "rte", untrained=40.5),
    ],
}
PAPERS = load_protocol("cramming").hyperparameters()
BLIMP = {
    "pairs": 67000,
    "paradigms": 67,
    "official": True,
    "blimp": 76.31,
    "interval": [76.0, 76.6],
    "fields": {"syntax": 70.2},
    "phenomena": {"npi_licensing": 61.0, "ellipsis": 82.5},
    "paradigm": {"ellipsis_n_bar_1": 82.5},
}
HELDOUT = {
    **{"rows": 2000, "length": 128, "tokens_per_character": 0.21},
    **{"loss@0.15": 2.51234, "loss@0.25": 2.7},
    **{"bits_per_character@0.15": 0.8, "bits_per_character@0.25": 0.85},
}


def evaluated(run: Path, **suites: Any) -> Path:
    """The run, given these scores."""
    (run / "evaluation").mkdir(exist_ok=True)
    scores = {"schema": 2, "model": {}, "protocol": PAPERS, "suites": suites}
    (run / "evaluation" / "scores.json").write_text(json.dumps(scores))
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    text = write_jsonl(folder / "text.jsonl", documents(600))
    config = tiny(
        "crammed-2022",
        "train.log_seconds=0.01",
        "train.heldout_every=0.3",
        budget={"limit": "12updates"},
        data={"sources": [str(text)]},
    )
    run_everything(Asked(config), folder / "run", None, None, SILENT)
    return folder / "run"


def test_the_report_is_whole_and_stands_alone(run: Path) -> None:
    page = (run / "report.html").read_text()
    checker = _Balanced()
    checker.feed(page)
    assert not checker.open
    assert page.count("<svg") == 7
    assert not re.findall(r'(?:src|href)="(?!#)', page)  # nothing is fetched
    assert "Undefined" not in page
    for words in (
        "Loss over the budget",
        "Where the time went",
        "RoBERTa-base",
        "Filling gaps",
        ">held-out, 15 % masked, on the way<",
        ">held-out, 25 % masked, at the end<",
        "Large marks are the held-out loss of the trained model",
        "Small marks are on fewer rows",
    ):
        assert words in page
    assert "recipe: crammed-2022" in page


def test_folders_of_sources_are_not_shown(tmp_path: Path) -> None:
    private = tmp_path / "private-folder"
    (private / "texts").mkdir(parents=True)
    write_jsonl(private / "texts" / "text.jsonl", documents(600))
    (private / "texts" / "broken.jsonl.gz").write_bytes(b"\x1f\x8b nothing")
    said = io.StringIO()
    with Progress(said) as progress:
        config = tiny(
            "crammed-2022",
            "data.unreadable=skip",
            budget={"limit": "2updates"},
            data={"sources": [str(private / "texts")]},
        )
        run_everything(Asked(config), tmp_path / "run", None, None, progress)
    assert "skipped  broken.jsonl.gz: texts/broken.jsonl.gz cannot be read" in said.getvalue()
    assert "private-folder" not in said.getvalue()
    telling = [
        str(file.relative_to(tmp_path / "run"))
        for file in (tmp_path / "run").rglob("*")
        if file.is_file() and b"private-folder" in file.read_bytes()
    ]
    assert telling == ["config.json"]  # which is needed to go on
    assert "path: texts" in (tmp_path / "run" / "report.html").read_text()


def test_several_runs_side_by_side(run: Path, tmp_path: Path) -> None:
    page = write_report([run, run], tmp_path / "reports/new/both.html").read_text()
    assert page.count("<svg") == 15
    assert "2 runs" in page
    assert page.count("Small marks are on fewer rows") == 3
    assert "held-out text" not in page.split("<article>")[0]


def test_losses_of_different_held_out_texts_have_axes_of_their_own(
    run: Path, tmp_path: Path
) -> None:
    for name, changed in (
        ("b", {"heldout_sha256": "0"}),
        ("c", {"heldout_sha256": "0"}),
        ("d", {}),
    ):
        shutil.copytree(run, tmp_path / name)
        summary = read_json(run / "summary.json") or {}
        corpus = {**summary["corpus"], **changed, "sha256": "1"}
        if name == "d":  # as an older version left it
            del corpus["heldout_sha256"]
        write_json(tmp_path / name / "summary.json", {**summary, "corpus": corpus})
    folders = [run, *(tmp_path / name for name in "bcd")]
    page = write_report(folders, tmp_path / "all.html").read_text()
    head = page.split("<article>")[0]
    assert head.count("<svg") == 3
    titles = re.findall(r"Loss over the budget, held-out text (.*?)</h2>", head)
    assert titles == ["A: run", "B: b, c", "C: d"]
    assert "not from one text to another" in head
    rows = re.findall(r"<tr><td>(\w+)</td><td>(\w)</td>", head)
    assert rows == [("run", "A"), ("b", "B"), ("c", "B"), ("d", "C")]
    checker = _Balanced()
    checker.feed(page)
    assert not checker.open


@pytest.fixture
def moved(run: Path, tmp_path: Path) -> Path:
    """The run without its corpus."""
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "corpus")
    return tmp_path / "run"


def test_what_a_corpus_holds(moved: Path, tmp_path: Path) -> None:
    lengths = np.array([1, 900, 1500])
    statistics = Statistics.of("tales", 4 * lengths, lengths, np.array([5, 6]), 17)
    write_corpus(
        moved / "corpus",
        numbered_files([3, 4]),
        statistics=statistics.summary(unknown=1),
        steps=[
            {"step": "gopher", "kept": 30, "dropped": 10, "characters": 2500},
            {"step": "exact duplicates", "kept": 30, "dropped": 0, "characters": 0},
            {"step": "repeated passages", "kept": 30, "dropped": 0, "characters": 70},
        ],
        dropped=[{"step": "gopher", "source": "tales", "text": "<b>Buy</b>\n now"}],
        skipped=[{"part": "b.txt.gz", "why": "cannot be read to its end"}],
        orders={"rare-first": range(7)},
    )
    page = write_report([moved], tmp_path / "report.html").read_text()
    checker = _Balanced()
    checker.feed(page)
    assert not checker.open
    for words in (
        "tales: 4 documents, 90 characters (100.0 %)",
        "10 documents (25.0 %), 2.5 k characters",
        ">70 characters",
        "b.txt.gz: cannot be read to its end",
        "&lt;b&gt;Buy&lt;/b&gt; now",
        "random, rare-first",
        "[PAD] [PAD] [PAD] [PAD]",
        ">256<",
    ):
        assert words in page
    assert "exact duplicates" not in page


def test_a_corpus_of_an_older_version(moved: Path, tmp_path: Path) -> None:
    steps = [{"step": "exact duplicates", "kept": 10, "dropped": 10}]
    write_corpus(moved / "corpus", numbered_files([3]), steps=steps)
    page = write_report([moved], tmp_path / "report.html").read_text()
    assert "10 documents (50.0 %)" in page
    assert "Documents kept" not in page


def test_a_run_without_its_corpus(moved: Path, tmp_path: Path) -> None:
    page = write_report([moved], tmp_path / "report.html").read_text()
    assert "Contents of the corpus" not in page
    assert page.count("<svg") == 5


def test_scores_are_shown_with_all_that_belongs_to_them(moved: Path, tmp_path: Path) -> None:
    suites = {"glue": GLUE, "blimp": BLIMP, "heldout": HELDOUT}
    page = write_report([evaluated(moved, **suites)], tmp_path / "report.html").read_text()
    checker = _Balanced()
    checker.feed(page)
    assert not checker.open
    assert page.count("<svg") == 7
    for words in (
        "<b>88.1</b>",
        "85.1 to 91.1",
        "3.0 (5 seeds)",
        "<th>notes</th>",
        "accuracy 71.2; cut to 128 tokens: 3 sequences of train",
        "3,668 of 363,846 + 408: partial",
        "failed: line 4: no column &lt;sentence&gt;",
        "mean of mrpc, rte, qqp (partial data; cola FAILED)",
        "GLUE-2",
        "BERT-base, no pretraining",
        "npi licensing",
        "Warstadt et al. 2020",
        "2.512 nats per masked token with 15 % masked, 2.700 with 25 %<br>0.800 bits per char",
        "measured on 2,000 rows of 128 tokens; 0.210 tokens per character",
    ):
        assert words in page, words
    beside = page[page.index("Published, by") :]
    columns = re.findall(r'<th class="n">([^<]*)</th>', beside[: beside.index("</table>")])
    assert columns == ["mrpc", "rte", "stsb", "GLUE-2"]  # not qqp: partial; nor cola: failed


def test_partial_blimp_has_no_published_models_beside_it(moved: Path, tmp_path: Path) -> None:
    part = {**BLIMP, "official": False, "pairs": 335}
    page = write_report([evaluated(moved, blimp=part)], tmp_path / "report.html").read_text()
    assert "<b>partial</b>" in page
    assert "GPT-2" not in page


def test_a_suite_that_failed_as_a_whole_is_still_shown(moved: Path, tmp_path: Path) -> None:
    failed = {"tasks": {"rte": {"metric": "accuracy", "failed": "no file"}}, "means": []}
    page = write_report([evaluated(moved, glue=failed)], tmp_path / "report.html").read_text()
    assert "failed: no file" in page
    assert page.count("<svg") == 5


def test_a_model_from_elsewhere_has_a_report_of_its_scores(moved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "evaluations" / "theirs"
    folder.mkdir(parents=True)
    scores = json.loads(
        (evaluated(moved, glue=GLUE, blimp=BLIMP) / "evaluation/scores.json").read_text()
    )
    scores |= {
        "model": {"name": "theirs", "parameters": 22_700_000},
        "protocol": {**PAPERS, "epochs": 7},
    }
    (folder / "scores.json").write_text(json.dumps(scores))
    (folder / "evaluation.json").write_text("{}")
    page = write_report([folder], tmp_path / "report.html").read_text()
    for words in ("<h1>theirs</h1>", "22.7 M parameters", "lr 4e-05", "Scores after fine-tuning"):
        assert words in page
    assert "Published, by" not in page
    both = write_report([moved, folder], tmp_path / "report.html").read_text()
    assert both.count("<article>") == 2


def test_published_scores_add_up_to_the_papers_means() -> None:
    means = {row["name"]: fmean(row["scores"].values()) for row in published()["glue"]}
    assert [round(mean, 1) for mean in means.values()] == [85.2, 80.9, 80.7, 78.6, 78.3, 78.1, 45.5]
    assert {frozenset(row["scores"]) for row in published()["glue"]} == {
        frozenset(["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "mnli-mm", "qnli", "rte"])
    }


def test_only_comparable_numbers_have_published_ones_beside_them() -> None:
    beside = published_beside("glue", GLUE, PAPERS)
    assert beside is not None
    assert beside["columns"] == ["mrpc", "rte", "stsb", "GLUE-2"]
    assert beside["rows"][0]["values"] == [88.1, 55.2, 60.0, 66.6]
    bert = next(row for row in beside["rows"] if row["name"] == "BERT-base, fully trained")
    assert bert["values"] == [89.3, 59.2, 86.7, pytest.approx((89.3 + 59.2) / 2)]
    assert published_beside("mine", GLUE, PAPERS) is None
    assert published_beside("glue", GLUE, {**PAPERS, "batch": 32}) is None
    partial = {"tasks": {"qqp": score(80.0, official=False)}, "means": []}
    assert published_beside("glue", partial, PAPERS) is None


@pytest.mark.parametrize(
    ("seeds", "words"),
    [
        ((5, 5), "this model"),
        ((3, 3), "this model, 3 seeds"),
        ((1, 1), "this model, 1 seed"),
        ((5, 3), "this model, 3 or 5 seeds"),
    ],
)
def test_other_seeds_than_the_papers_are_named(seeds: tuple[int, int], words: str) -> None:
    rows = (("rte", seeds[0]), ("mrpc", seeds[1]))
    tasks = {name: score(60.0, seeds=[60.0] * count) for name, count in rows}
    beside = published_beside("glue", {"tasks": tasks, "means": []}, PAPERS)
    assert beside is not None
    assert beside["rows"][0]["name"] == words


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _printed(parts: list[Printed], stream: io.StringIO) -> str:
    show(parts, stream)
    return stream.getvalue()


def test_a_table_in_a_file_is_plain_and_whole() -> None:
    text = _printed([*score_tables("glue", GLUE, PAPERS, 128), blimp_table(BLIMP)], io.StringIO())
    assert "\x1b" not in text
    line = next(line for line in text.splitlines() if line.startswith("qqp"))
    assert line.split("  ")[-1].strip() == "3,668 of 363,846 + 408: partial"
    for words in ("77.0 to 83.0", "3.0 (5 seeds)", "40.5"):
        assert words in line
    for words in (
        "cola FAILED: line 4: no column <sentence>",
        "mrpc: accuracy 71.2; cut to 128 tokens: 3 sequences of train",
        "GLUE-2",
        "RoBERTa-base",
        "76.0 to 76.6",
        "npi licensing",
    ):
        assert words in text, words
    assert "GPT-2" not in _printed([blimp_table({**BLIMP, "official": False})], io.StringIO())


def test_a_narrow_terminal_cuts_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    text = _printed(score_tables("glue", GLUE, PAPERS, 128), _Terminal())
    assert "…" not in text
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    assert re.search(r"mrpc +f1 +88\.1 +85\.1 to 91\.1 +3\.0 \(5 seeds\) +40\.5", plain)


def test_a_comparison_says_what_could_not_be_compared() -> None:
    entries: list[dict[str, Any]] = [
        {"name": "rte", "metric": "accuracy", "a": 55.0, "b": 51.0, "difference": 4.0}
        | {"interval": [1.5, 6.0], "p": 0.0},
        {"name": "mrpc", "metric": "f1", "a": 81.0, "b": 80.0, "difference": 1.0}
        | {"interval": [0.5, 1.5], "p": None, "interval_over": "rows"},
        {"name": "qnli", "metric": "accuracy", "a": 81.0, "b": 81.0, "difference": 0.0}
        | {"interval": None, "p": None, "same": True},
        {"name": "MEAN", "of": ["rte"], "a": 55.0, "b": 55.1, "difference": -0.1}
        | {"interval": [-2.0, 2.0], "p": 0.46},
        {"name": "cola", "why": "B failed: no data"},
    ]
    text = _printed(comparison_tables("runs/a", "runs/b", entries), io.StringIO())
    assert re.search(r"rte +accuracy +55\.0 +51\.0 +\+4\.0 +\+1\.5 to \+6\.0 +< 0\.001", text)
    assert re.search(r"MEAN +mean +55\.0 +55\.1 +-0\.1 +-2\.0 to \+2\.0 +0\.460", text)
    assert re.search(r"mrpc .* \+0\.5 to \+1\.5, rows only +none", text)
    assert "nothing about another fine-tuning seed" in text
    assert re.search(r"qnli .* \+0\.0 +same predictions +none", text)
    assert "cola not compared: B failed: no data" in text
    assert "A: runs/a" in text
    assert len(comparison_tables("a", "b", entries[4:])) == 1
    assert "rows only" not in _printed(comparison_tables("a", "b", entries[:1]), io.StringIO())


def test_an_interval_that_no_seeds_were_drawn_for_says_so(tmp_path: Path) -> None:
    """Also in evaluations of versions that did not note it."""
    one = {"mrpc": score(88.1, seeds=[88.1], spread=0.0)}
    text = _printed(score_tables("glue", {"tasks": one, "means": []}, PAPERS, 128), io.StringIO())
    assert "85.1 to 91.1, rows only" in text
    assert "nothing about another fine-tuning seed" in text
    assert "rows only" not in _printed(score_tables("glue", GLUE, PAPERS, 128), io.StringIO())


def test_an_unfinished_run_has_no_report(tmp_path: Path) -> None:
    with RunDir.open(tmp_path / "run", tiny()):
        pass
    with pytest.raises(InputError, match="is not a finished run"):
        write_report([tmp_path / "run"], tmp_path / "report.html")
    with pytest.raises(InputError, match="is not a run"):
        write_report([tmp_path / "nowhere"], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234567.0, "1.23 M"), (999.0, "999"), (0.25, "0.25"), (3e18, "3 E"), (None, "unknown")],
)
def test_quantity(value: float | None, text: str) -> None:
    assert quantity(value) == text


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (5.0, "1.00 nats below the unigram model"),
        (6.05, "0.05 nats above the unigram model"),
        (6.004, "level with the unigram model"),
    ],
)
def test_a_loss_is_below_or_above_the_unigram_model(
    loss: float, text: str, moved: Path, tmp_path: Path
) -> None:
    assert beside_unigram(loss, 6.0) == text
    summary = read_json(moved / "summary.json") or {}
    summary |= {"heldout": {**summary["heldout"], "loss@0.15": loss}, "unigram_cross_entropy": 6.0}
    write_json(moved / "summary.json", summary)
    assert text in write_report([moved], tmp_path / "report.html").read_text()


def test_the_loss_after_training_is_a_mark_of_its_own() -> None:
    """Which no line joins to those on fewer rows; some runs have no others."""
    point = {"u": 0.5, "loss": 4.0, "loss@0.15": 3.0, "loss@0.25": 3.5}
    summary = {"u": 1.0, "heldout": point}
    run: dict[str, Any] = {"metrics": [point], "unigram": 5.0, "summary": summary}
    with_few, alone = (
        loss_figure([{**run, "on_the_way": points}]) for points in ([point, point], [])
    )
    assert "masked, on the way" in with_few
    assert "masked, on the way" not in alone
    for figure in (with_few, alone):
        assert figure.count("masked, at the end") == 2
