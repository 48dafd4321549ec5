from __future__ import annotations

import json
from pathlib import Path

import pytest

from crammed.doctor import TINY
from support.command import crammed
from support.tasks import PAIR
from support.text import documents, write_jsonl, write_rows

RUN = ("run", *TINY, "compute.workers=1", "finetune.seeds=1", "finetune.epochs=1")
BUDGET = ("--budget", "3updates", "--data", "text.jsonl", "--out", "run")
OWN = ("--suite", "mine.yaml", "--tasks-data", "mine")
SUITE = """tasks:
  mail: {text: review, metric: accuracy}
  docs-order: {text: review, metric: accuracy}
  agreement: {kind: minimal-pairs}
means:
  all: [mail, docs-order, agreement]
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Text, and a suite with its data: of its three tasks, one is called like one made here."""
    texts = documents(600)
    write_jsonl(tmp_path / "text.jsonl", texts)
    (tmp_path / "mine.yaml").write_text(SUITE)
    for task in ("mail", "docs-order"):
        for split, count in (("train", 40), ("validation", 20)):
            rows = [
                {"review": texts[n][:40], "label": "spam" if n % 2 else "ham"} for n in range(count)
            ]
            write_rows(tmp_path / "mine" / task / f"{split}.jsonl", rows)
    write_rows(tmp_path / "mine" / "agreement" / "validation.jsonl", [PAIR])
    return tmp_path


def test_a_run_is_scored_on_tasks_of_ones_own(here: Path) -> None:
    done = crammed(*RUN, *BUDGET, *OWN, cwd=here)
    assert done.returncode == 0, done.stderr
    assert "\nmail " in done.stdout
    assert "docs-order " in done.stdout
    assert "\nagreement " in done.stdout
    assert not (here / "run" / "tasks").exists(), "the suite's task of this name is meant"
    scores = json.loads((here / "run" / "evaluation" / "scores.json").read_text())
    assert list(scores["suites"]) == ["mine"]
    assert list(scores["suites"]["mine"]["tasks"]) == ["mail", "docs-order", "agreement"]
    page = (here / "run" / "report.html").read_text()
    assert "Scores after fine-tuning: mine</h2>" in page
    assert "<summary>mail: what the median seed gets wrong</summary>" in page
    told = json.loads((here / "run" / "evaluation" / "told" / "mine" / "mail.json").read_text())
    assert sum(map(sum, told["confusion"])) == 20
    for line in told["confusion"]:
        assert "".join(f'<td class="n">{count}</td>' for count in line) in page

    again = crammed(*RUN, *BUDGET, *OWN, "--json", cwd=here)
    assert "finished earlier" in again.stderr
    assert list(json.loads(again.stdout)["tasks"]) == ["mail", "docs-order", "agreement"]
    heldout = ("evaluate", "run", "--suite", "heldout", "--data", "run/corpus/heldout.jsonl.gz")
    report = here / "run" / "report.html"
    assert "<th>loss on other text</th>" not in report.read_text()
    elsewhere = crammed(*heldout, "--into", "scores", cwd=here)
    assert "report  " not in elsewhere.stderr
    assert "report  run/report.html\n" in crammed(*heldout, cwd=here).stderr
    assert "<th>loss on other text</th>" in report.read_text()
    report.unlink()
    report.mkdir()
    unwritable = crammed(*heldout, cwd=here)
    assert unwritable.returncode == 0
    assert (
        "report  not rewritten: cannot write run/report.html: it is a folder\n" in unwritable.stderr
    )
    report.rmdir()
    assert "report  " not in crammed(*heldout, cwd=here).stderr, "it had none"

    other = crammed(*RUN, *BUDGET, *OWN, "--tasks", "mail", cwd=here)
    assert "holds a run with another configuration (finetune.tasks: " in other.stderr
    unnamed = crammed(*RUN, *BUDGET, cwd=here)
    assert unnamed.returncode == 2
    assert "add --suite FILE.yaml --tasks-data DIR" in unnamed.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--suite", "mine.yaml"), "suite mine.yaml needs the folder of its tasks: --tasks-data"),
        (("--glue", "mine", *OWN), "use --glue DIR, or --suite with --tasks-data, not both"),
        (("--tasks-data", "mine"), "mine holds no task of suite glue"),
        ((*OWN, "--tasks", "male"), "no task 'male': did you mean mail?"),
        (("--suite", "blimp", "--tasks-data", "mine"), "crammed evaluate RUN --suite blimp"),
        (("--suite", "mine.yml", "--tasks-data", "mine"), "cannot read suite mine.yml"),
        ((*OWN, "finetune.tasks=[mail]"), "finetune.tasks is set twice, by --tasks, --suite or"),
        ((*OWN, "finetune.batch=50"), "(--protocol FILE.yaml, or finetune.batch in a run)\n"),
        (("--tasks", "rte"), "--glue DIR (crammed run only), or leave out --tasks or fine"),
    ],
)
def test_wrong_words_about_tasks_leave_nothing_behind(
    here: Path, words: tuple[str, ...], message: str
) -> None:
    before = sorted(here.rglob("*"))
    done = crammed("run", *BUDGET, *words, cwd=here)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize("own", [True, False])
def test_faults_in_the_data_of_tasks_end_a_run_before_it_begins(here: Path, own: bool) -> None:
    folder = here / "mine" / "mail"
    if not own:
        folder = folder.rename(here / "mine" / "sst2")
    write_rows(here / "mine" / "rte" / "training.jsonl", [PAIR])
    (folder / "train.jsonl").write_text('{"sentence": "good", "review": "good", "label": null}\n')
    before = sorted(here.rglob("*"))
    words = OWN if own else ("--glue", "mine")
    done = crammed(*RUN, *BUDGET, *words, cwd=here)
    assert done.returncode == 2, done.stderr
    assert "train.jsonl, line 1: label None" in done.stderr
    note = "note  task rte is left out: mine/rte has no train split"
    assert (note in done.stderr) is not own
    assert done.stderr.endswith(
        "; change the data, or mine.yaml\n" if own else "; change the data\n"
    )
    assert sorted(here.rglob("*")) == before


def test_a_task_of_ones_own_without_its_training_split_is_refused(here: Path) -> None:
    folder = here / "mine" / "mail"
    (folder / "train.jsonl").rename(folder / "training.jsonl")
    before = sorted(here.rglob("*"))
    done = crammed(*RUN, *BUDGET, *OWN, cwd=here)
    assert done.returncode == 2, done.stderr
    assert "task mail: mine/mail has no train split, as" in done.stderr
    assert sorted(here.rglob("*")) == before
