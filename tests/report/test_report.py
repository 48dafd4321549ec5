from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from crammed.data.statistics import Statistics
from crammed.errors import InputError
from crammed.files.writing import read_json, write_json
from crammed.pipeline import run_everything
from crammed.quantity import beside_unigram, quantity
from crammed.report.figures import loss_figure, progress_figure, scores_figure
from crammed.report.page import write_report
from crammed.report.verdict import verdict
from crammed.rules.choosing import Asked, Choice, reasons
from crammed.runs.directory import RunDir, read_config
from crammed.runs.summary import Summary
from crammed.terminal.progress import SILENT, Progress
from support.corpora import numbered_files, write_corpus
from support.html import check_balanced
from support.scores import BLIMP, GLUE, HELDOUT, PAPERS, evaluated
from support.study import SUMMARY
from support.text import documents, tiny, write_jsonl


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    texts = documents(600)
    text = write_jsonl(folder / "text.jsonl", texts[:400])
    news = write_jsonl(folder / "news.jsonl", texts[400:])
    config = tiny(
        "crammed-2022",
        "train.log_seconds=0.01",
        "train.heldout_every=0.3",
        budget={"limit": "12updates"},
        data={"sources": [str(text), str(news)]},
    )
    run_everything(Asked(config), folder / "run", None, None, SILENT)
    return folder / "run"


def test_the_report_is_whole_and_stands_alone(run: Path) -> None:
    page = (run / "report.html").read_text()
    check_balanced(page)
    assert page.count('<div class="wide"><svg') == page.count('<div class="narrow"><svg') == 3
    assert not re.findall(r'(?:src|href)="(?!#)', page)  # nothing is fetched
    assert "Undefined" not in page
    for words in (
        "Loss over the budget",
        "Where the time went",
        "RoBERTa-base",
        "Predicting masked words",
        ">held-out, 15 % masked<",
        ">held-out, 25 % masked<",
        ">gradient norm<",
        "Summary",
        "<th>What it learned</th>",
        "<th>Why this size</th>",
        "Large marks are the result: the held-out loss of the trained model",
        "Small marks were measured during training",
    ):
        assert words in page
    assert "recipe: crammed-2022" in page
    by_source = (read_json(run / "summary.json") or {})["heldout_by_source"]
    assert list(by_source) == ["text.jsonl", "news.jsonl"]
    for name, own in by_source.items():
        assert f"{name}: {own['loss@0.15']:.3f} nats" in page


def test_a_task_that_a_run_never_had_does_not_fail_it(run: Path, tmp_path: Path) -> None:
    folder = evaluated(shutil.copytree(run, tmp_path / "run"), glue=GLUE)  # by crammed evaluate
    assert "failed" in GLUE["tasks"]["cola"]
    result = run_everything(Asked(read_config(folder)), folder, None, None, SILENT)
    assert result["tasks"].keys() == GLUE["tasks"].keys()


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
    assert page.count('<div class="wide"><svg') == 7
    assert "2 runs" in page
    assert page.count("Small marks were measured during training") == 3
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
    assert head.count('<div class="wide"><svg') == 3
    titles = re.findall(r"Loss over the budget, held-out text (.*?)</h2>", head)
    assert titles == ["A: run", "B: b, c", "C: d"]
    assert "not from one text to another" in head
    rows = re.findall(r"<tr><td>(\w+)</td><td>(\w)</td>", head)
    assert rows == [("run", "A"), ("b", "B"), ("c", "B"), ("d", "C")]
    check_balanced(page)


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
    check_balanced(page)
    for words in (
        "tales: 4 documents, 90 characters (100.0 %)",
        "10 documents (25.0 %), 2.5 k characters",
        "70 characters",
        "b.txt.gz: cannot be read to its end",
        "&lt;b&gt;Buy&lt;/b&gt; now",
        "random, rare-first",
        "[PAD] [PAD] [PAD] [PAD]",
        ">512<",
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
    assert page.count('<div class="wide"><svg') == 2


def test_scores_by_other_protocols_are_shown_beside_the_own(moved: Path, tmp_path: Path) -> None:
    evaluated(moved, glue=GLUE)
    (moved / "evaluation").rename(moved / "evaluation-bert-base")
    alone = write_report([moved], tmp_path / "alone.html").read_text()
    assert "Scores after fine-tuning: glue by bert-base</h2>" in alone
    evaluated(moved, blimp=BLIMP, glue=GLUE)
    page = write_report([moved], tmp_path / "report.html").read_text()
    check_balanced(page)
    places = [
        page.index(f"Scores after fine-tuning: glue{by}</h2>") for by in ("", " by bert-base")
    ]
    assert places == sorted(places)
    assert "<span>mean of mrpc, rte, qqp (partial data; cola FAILED)" in page
    assert "(partial data; cola FAILED) by bert-base" in page


def test_scores_are_shown_with_all_that_belongs_to_them(moved: Path, tmp_path: Path) -> None:
    suites = {"glue": GLUE, "blimp": BLIMP, "heldout": HELDOUT}
    page = write_report([evaluated(moved, **suites)], tmp_path / "report.html").read_text()
    check_balanced(page)
    assert page.count('<div class="wide"><svg') == 3
    for words in (
        "Pretraining helped on mrpc (",
        '<table class="numbers">',
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


def test_the_positive_class_and_skipped_rows_are_shown(moved: Path, tmp_path: Path) -> None:
    skipped = {"train": 2, "validation": 1}
    mail = {**GLUE["tasks"]["mrpc"], "metric": "f1 of <spam>", "skipped": skipped}
    mine = {"tasks": {"mail": mail}, "means": []}
    page = write_report([evaluated(moved, mine=mine)], tmp_path / "report.html").read_text()
    assert "<td>mail</td><td>f1 of &lt;spam&gt;</td>" in page
    assert "mail, f1 of &lt;spam&gt;;<br>untrained model 40.5" in page
    assert "train; skipped, without text: 2 rows of train, 1 row of validation</td>" in page


def test_partial_blimp_has_no_published_models_beside_it(moved: Path, tmp_path: Path) -> None:
    part = {**BLIMP, "official": False, "pairs": 335}
    page = write_report([evaluated(moved, blimp=part)], tmp_path / "report.html").read_text()
    assert "<b>partial</b>" in page
    assert "GPT-2" not in page


def test_a_suite_that_failed_as_a_whole_is_still_shown(moved: Path, tmp_path: Path) -> None:
    failed = {"tasks": {"rte": {"metric": "accuracy", "failed": "no file"}}, "means": []}
    page = write_report([evaluated(moved, glue=failed)], tmp_path / "report.html").read_text()
    assert "failed: no file" in page
    assert page.count('<div class="wide"><svg') == 2


def test_a_model_from_elsewhere_has_a_report_of_its_scores(moved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "evaluations" / "theirs"
    folder.mkdir(parents=True)
    scores = json.loads(
        (evaluated(moved, glue=GLUE, blimp=BLIMP) / "evaluation/scores.json").read_text()
    )
    scores |= {
        "model": {"name": "theirs", "sha256": "", "parameters": 22_700_000},
        "protocol": {**PAPERS, "epochs": 7},
    }
    for name in ("scores", "evaluation"):
        (folder / f"{name}.json").write_text(json.dumps(scores))
    page = write_report([folder], tmp_path / "report.html").read_text()
    for words in (
        "Pretraining helped on mrpc (",
        "<h1>theirs</h1>",
        "22.7 M parameters",
        "lr 4e-05",
        "Scores after fine-tuning",
    ):
        assert words in page
    assert "Published, by" not in page
    assert "clip" not in page.split("Fine-tuned with")[1].split("</p>")[0]
    scores["protocol"]["lr"] = 4e-5 * 6**1.5
    (folder / "scores.json").write_text(json.dumps(scores))
    page = write_report([folder], tmp_path / "report.html").read_text()
    assert "lr 0.000588, " in page
    both = write_report([moved, folder], tmp_path / "report.html").read_text()
    assert both.count("<article>") == 2


@pytest.mark.parametrize(
    "values",
    [
        *({name: 5} for name in ("interval", "rows", "cut", "also", "gain", "skipped")),
        *({name: "x"} for name in ("spread", "untrained")),
        {"seeds": 5},
        {"means": 5},
    ],
    ids=str,
)
def test_scores_of_other_types_are_one_line(
    moved: Path, tmp_path: Path, values: dict[str, Any]
) -> None:
    damaged: dict[str, Any] = {"means": [], **values}
    damaged["tasks"] = {"mrpc": {**GLUE["tasks"]["mrpc"], **values}}
    with pytest.raises(InputError, match=r"/evaluation is damaged: restore it from a copy, or"):
        write_report([evaluated(moved, glue=damaged)], tmp_path / "report.html")


def test_an_unfinished_run_has_no_report(tmp_path: Path) -> None:
    with RunDir.open(tmp_path / "run", tiny()):
        pass
    with pytest.raises(InputError, match="is not a finished run"):
        write_report([tmp_path / "run"], tmp_path / "report.html")
    with pytest.raises(InputError, match="nowhere does not exist: name the folder of a run"):
        write_report([tmp_path / "nowhere"], tmp_path / "report.html")
    write_json(tmp_path / "run" / "summary.json", {})
    with pytest.raises(InputError, match=r"has runs in it: name those, such as .*/run$"):
        write_report([tmp_path], tmp_path / "report.html")
    write_json(tmp_path / "study.json", {})
    with pytest.raises(InputError, match=r", or .*/\*-0 for the first seed of each arm"):
        write_report([tmp_path], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234567.0, "1.23 M"),
        (999.0, "999"),
        (999_999.0, "1 M"),
        (0.25, "0.25"),
        (3e18, "3 E"),
        (None, "unknown"),
    ],
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


def test_energy_is_shown_where_it_is_known(moved: Path, tmp_path: Path) -> None:
    summary = read_json(moved / "summary.json") or {}
    for joules, shown in ((None, False), (3.6e6, True)):
        write_json(moved / "summary.json", {**summary, "joules": joules})
        text = write_report([moved], tmp_path / "report.html").read_text()
        assert ("<b>3.6 MJ</b>" in text) == shown


def test_the_loss_after_training_is_a_mark_of_its_own() -> None:
    """Which no line joins to those on fewer rows; some runs have no others."""
    point = {"u": 0.5, "loss": 4.0, "loss@0.15": 3.0, "loss@0.25": 3.5}
    summary = SimpleNamespace(u=1.0, heldout=point)
    run: dict[str, Any] = {"metrics": [point], "unigram": 5.0, "summary": summary}
    for points in ([point, point], []):
        figure = loss_figure([{**run, "on_the_way": points}])
        assert figure.count(">held-out, 15 % masked<") == 2  # in each width


def test_the_legend_of_scores_fits_a_phone() -> None:
    own = {"seeds": [60.0], "median": 60.0, "interval": [50.0, 70.0], "linear": 62.0}
    figure = scores_figure({"sick-relatedness": {**own, "untrained": own}})
    assert figure is not None
    _, narrow = figure.split('class="narrow"')
    (width,) = re.findall(r'viewBox="0 0 ([\d.]+) ', narrow)
    (begin,) = re.findall(r' x="([\d.]+)"[^>]*>TF-IDF<', narrow)
    assert float(begin) + 6 * 6.0 < float(width), "six letters of 6 points each"


def test_gradient_norms_have_a_curve_where_they_are_known() -> None:
    point = {"u": 0.5, "lr": 1e-3, "batch_rows": 8, "mask_rate": 0.25, "tokens_per_s": 900.0}
    for norm, shown in ((2.0, True), (None, False), (0.0, False), (float("inf"), False)):
        figure = progress_figure([{**point, "grad_norm": norm}])
        assert figure.count("<svg") == 2
        assert ("gradient norm" in figure) == shown


def test_names_act_on_nothing(
    moved: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    summary = read_json(moved / "summary.json") or {}
    summary["corpus"]["sources"] = ["\x1b[31m<b>\u202etext"]
    write_json(moved / "summary.json", summary)
    named = moved.rename(tmp_path / "a\x07<i>")
    page = write_report([named, named], tmp_path / "report.html").read_text("utf-8")
    assert not re.search("[\x07\x1b\u202e]|<i>|<b>text", page)
    assert "\u241b[31m&lt;b&gt;" in page
    assert not recwarn.list  # of letters that the font of the figures lacks


def score(median: float, low: float, high: float, twin: float) -> dict[str, Any]:
    untrained = {"median": twin, "interval": [twin - 1, twin + 1]}
    return {"median": median, "interval": [low, high], "untrained": untrained}


def test_the_verdict_says_what_a_run_achieved(tmp_path: Path) -> None:
    config = tiny("crammed", budget={"limit": "12updates"})
    summary = Summary.model_validate(
        {
            **SUMMARY,
            **{"epochs": 2.0, "tokens": 64 * config.data.row_length, "parameters": 9000},
            "ended_short": "training ended at 40 % of its schedule; raise the budget",
        }
    )
    summary.heldout["loss@0.15"] = 3.0
    summary.corpus.vocab_size = config.tokenizer.vocab_size
    tasks = {
        "up": score(60.0, 58.0, 62.0, 50.0),
        "same": score(50.5, 49.0, 52.0, 50.0),
        "down": score(40.0, 38.0, 42.0, 50.0),
        "alone": {"median": 3.0},
        "bad": {"failed": "no file"},
    }
    run = tmp_path / "run"
    RunDir.open(run, config).__exit__()
    said = dict(verdict(run, config, Choice(), summary, {"mine": {"tasks": tasks}}))
    assert "Train longer" not in said
    assert said["What it learned"].startswith("To predict words from their context: ")
    assert "3.000 nats is 2.00 nats below the unigram model" in said["What it learned"]
    brought = said["Gain from pretraining: mine"]
    assert brought.startswith(
        "Pretraining helped on up (+10.0); it made no clear difference on same (+0.5); "
        "it hurt down (-10.0)."
    )
    assert said["Ended short"] == "Training ended at 40 % of its schedule; raise the budget."
    assert said["Why this size"].startswith(f"{config.model.layers} x {config.model.width} (9 k ")
    assert reasons(config, Choice(), 32) in said["Why this size"]
    for loss, words in ((4.5, "Little more than how often"), (5.2, "No more than how often")):
        summary.heldout["loss@0.15"] = loss
        said = dict(verdict(run, config, Choice(), summary, {}))
        assert said["What it learned"].startswith(words)
        assert said["Train longer"].endswith(": train with a larger budget.")
