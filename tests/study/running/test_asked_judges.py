"""Which judges a study gets, from its file and what is typed; wrong ones are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crammed.budget import Budget
from crammed.cli import studies
from crammed.errors import InputError
from crammed.files.writing import write_json
from crammed.study.running.judges import check_data, judges_of
from crammed.study.running.request import Request
from crammed.study.running.request import run as run_request
from crammed.study.spec.arms import read_study
from crammed.terminal.progress import SILENT
from support.study import write_study
from support.text import write_rows

BUDGET = Budget.parse("6updates")
OWN = """tasks:
  rte:
    text: [sentence1, sentence2]
    labels: [entailment, not_entailment]
    metric: accuracy
"""


@pytest.mark.parametrize(
    ("names", "given", "message"),
    [
        (["blimb"], {}, "no judge 'blimb': did you mean blimp"),
        (["blimp"], {}, "the judge blimp needs its data: give --blimp FILE"),
        (
            ["glue"],
            {"tasks": Path("none")},
            "no glue data at none: name a DIR that exists with --tasks",
        ),
        (["small.trek"], {}, "no judge 'small.trek': did you mean trec"),
        (["blimp.anaphora"], {}, "no judge 'blimp.anaphora'"),
        (["none.yaml.rte"], {}, "none.yaml"),
        (["my.own.yaml"], {}, "my.own.yaml: a judge's file may have no other dot and no @ in its"),
        (["a@b.yaml"], {}, "a@b.yaml: a judge's file may have no other dot and no @ in its name"),
        (["loss.yaml@small"], {}, "loss.yaml: a study has results called loss of its own: rename"),
        (["bits_per_character.yaml"], {}, "has results called bits_per_character of its own"),
        (["bits_x.yaml.a"], {}, "bits_x.yaml: a study has results called bits_x of its own"),
        (["untrained.yaml"], {}, "untrained.yaml: a study has results called untrained of its"),
        (["tokens.yml"], {}, "tokens.yml: a study has results called tokens of its own"),
        (["losses.yaml"], {}, "cannot read suite .*losses.yaml"),
        (["small"], {}, "the judge small needs its data: give --tasks-data DIR"),
        (["blimp@bert-base"], {}, "blimp@bert-base: blimp fine-tunes nothing"),
        (["glue@bert-bass"], {}, "no protocol 'bert-bass': did you mean bert-base"),
        (
            ["heldout"],
            {"blimp": Path(__file__)},
            "--blimp names data that no judge uses: name a judge that does with --judges, or leave",
        ),
    ],
)
def test_wrong_judges_are_refused(names: list[str], given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        judges_of(names, **given)


def test_protocols_of_the_same_name_are_refused(tmp_path: Path, glue: Path) -> None:
    (tmp_path / "bert-base.yaml").write_text("{seeds: 1}")
    names = ["glue.cola@bert-base", f"glue.cola@{tmp_path / 'bert-base.yaml'}"]
    with pytest.raises(InputError, match="two protocols of judges are called bert-base"):
        judges_of(names, tasks=glue)


def test_suites_of_the_same_name_are_refused(tmp_path: Path, glue: Path) -> None:
    own = tmp_path / "glue.yaml"
    own.write_text(OWN)
    with pytest.raises(InputError, match="two suites of judges are called glue"):
        judges_of(["glue.cola", str(own)], None, glue)


def test_tasks_of_any_suite_judge(tmp_path: Path, glue: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text(OWN)
    judges = judges_of(["glue.cola", f"{own}.rte"], None, glue)
    assert [each.names for each in judges] == [("glue.cola",), ("mine.rte",)]
    assert judges_of([str(own)], None, glue)[0].names == ("mine.rte",)
    with pytest.raises(InputError, match="tasks are rte"):
        judges_of([f"{own}.cola"], None, glue)
    before = judges[1].state()
    own.write_text(OWN + "    most_rows: 5\n")
    assert judges[1].state() != before


@pytest.mark.parametrize("by", ["", "@bert-base"])
def test_the_folder_of_a_judges_file_may_have_an_at_in_its_name(
    tmp_path: Path, glue: Path, by: str
) -> None:
    own = tmp_path / "a@b" / "mine.yaml"
    own.parent.mkdir()
    own.write_text(OWN)
    for name in (f"{own}{by}", f"{own}.rte{by}"):
        (judge,) = judges_of([name], None, glue)
        assert (judge.suite, judge.names) == (str(own), (f"mine.rte{by}",))
    study = tmp_path / "study.yaml"
    arms = "base: [crammed]\nbaseline: a\narms: {a: [], b: [optim.clip=1]}\n"
    study.write_text(f"{arms}judges: ['a@b/mine.yaml{by}']\n")
    assert read_study(str(study)).judges == (f"{own}{by}",)


def test_what_follows_a_built_in_suite_is_its_protocol(tmp_path: Path) -> None:
    write_rows(tmp_path / "small" / "trec" / "train.jsonl", [{"sentence": "Why?", "label": 0}])
    own = tmp_path / "a@b" / "quick.yaml"
    own.parent.mkdir()
    own.write_text("{seeds: 1}")
    (judge,) = judges_of([f"small.trec@{own}"], None, tmp_path / "small")
    assert (judge.suite, judge.protocol) == ("small", str(own))
    assert judge.names == ("small.trec@quick",)


def test_the_data_of_judges_is_read_unless_runs_were_judged_with_it(
    tmp_path: Path, glue: Path
) -> None:
    own, pairs = tmp_path / "mine.yaml", tmp_path / "pairs.jsonl"
    own.write_text(OWN.replace("sentence2", "sentence3"))
    judges = judges_of([str(own)], None, glue)
    with pytest.raises(InputError, match=r"task rte: .*sentence3"):
        check_data(judges, {"mine": "another state"}, ["mine.rte"])
    check_data(judges, {"mine": judges[0].state()}, ["loss@0.15", "mine.rte"])
    pairs.write_text("{}\n")
    with pytest.raises(InputError, match=r"pairs.jsonl.*no sentence_good"):
        check_data(judges_of(["blimp"], pairs), {}, [])


def test_the_data_of_a_task_that_is_added_to_those_of_its_suite_is_read(
    tmp_path: Path, glue: Path
) -> None:
    """Both are in one folder, which runs have been judged with."""
    own = tmp_path / "mine.yaml"
    own.write_text(f"{OWN}  cola: {{text: sentences, labels: 2, metric: matthews}}\n")
    (rte,), (both,) = (
        judges_of([f"{own}.{task}" for task in tasks], None, glue)
        for tasks in (("rte",), ("rte", "cola"))
    )
    known, out = {"mine": rte.state()}, tmp_path / "out"
    check_data([rte], known, ["mine.rte"])
    with pytest.raises(InputError, match=r"task cola: .*no column 'sentences'"):
        check_data([both], known, ["mine.rte"])
    run = {"tokens": 1, "seconds": 1.0, "scores": {"mine.rte": 70.0}}
    arms = {"plain": {"words": [], "runs": {"0": run}}}
    write_json(out / "study.json", {"judges": known, "arms": arms})
    file = write_study(tmp_path, {"plain": [], "b": []})
    ask = Request(file, (), None, ["none.txt"], BUDGET, 1, out, 1, [both])
    with pytest.raises(InputError, match=r"task cola: .*no column 'sentences'"):
        run_request(ask, SILENT)


def test_a_task_without_data_is_refused(glue: Path) -> None:
    with pytest.raises(InputError, match="has no task mrpc: it has cola, rte"):
        judges_of(["glue.mrpc"], None, glue)
    assert [each.names for each in judges_of(["glue"], None, glue)] == [("glue.cola", "glue.rte")]


def test_a_task_without_its_training_split_is_refused_if_its_whole_suite_judges(
    tmp_path: Path, glue: Path
) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text(f"{OWN}  mrpc: {{text: sentence, metric: accuracy}}\n")
    write_rows(glue / "mrpc" / "training.jsonl", [{"sentence": "Why?", "label": 0}])
    with pytest.raises(InputError, match=r"task mrpc: .*mrpc has no train split"):
        judges_of([str(own)], None, glue)
    assert judges_of([f"{own}.rte"], None, glue)[0].names == ("mine.rte",)


def declared(tmp_path: Path, judges: str | None = None, **typed: Any) -> list[tuple[Any, ...]]:
    """Suites, data and tasks that a study asks for whose file names judges and their data."""
    folder = tmp_path / "studies"
    folder.mkdir(exist_ok=True)
    (folder / "own.yaml").write_text("epochs: 2\n")
    judging = ["blimp", "glue.cola@own.yaml"]
    own = {"judges": judging, "blimp": "../blimp.jsonl", "glue": "../glue"}
    file = write_study(folder, {"plain": [], "b": []}, **own)
    found = studies._judges(file, judges, typed.get("blimp"), typed.get("tasks"))
    assert all(each.by in ("", "@own") for each in found)
    return [(each.suite, each.data.resolve(), each.tasks) for each in found]


def test_a_file_declares_judges_and_what_is_typed_wins(
    tmp_path: Path, blimp: Path, glue: Path
) -> None:
    both = [("blimp", blimp, ()), ("glue", glue, ("cola",))]
    assert declared(tmp_path) == both
    assert declared(tmp_path, judges="glue.rte") == [("glue", glue, ("rte",))]
    assert declared(tmp_path, judges="heldout") == []
    other = blimp.rename(tmp_path / "other.jsonl")
    assert declared(tmp_path, blimp=other) == [("blimp", other, ()), both[1]]
    with pytest.raises(InputError, match=r"no blimp data at .*: name a FILE that exists"):
        declared(tmp_path)


def test_judges_of_a_file_are_checked_before_anything_is_prepared(
    tmp_path: Path, text_file: Path, glue: Path
) -> None:
    file = write_study(tmp_path, {"plain": [], "b": []}, judges=["glue.mrpc"], glue="glue")
    texts, out = [str(text_file)], tmp_path / "out"
    with pytest.raises(InputError, match="has no task mrpc: it has cola, rte"):
        studies.study(file, budget=BUDGET, data=texts, out=out)
    assert not out.exists()
