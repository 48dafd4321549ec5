"""Tables and figures of studies: arms by what they were compared by, and the conclusions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

import layout
from crammed.budget import Budget
from crammed.quantity import counted, quantity
from crammed.study.findings.laws import laws_of
from crammed.study.findings.scaling import analyse
from crammed.study.findings.statistics import FEWEST, compare_arms, decidable, decidable_text
from crammed.study.findings.table import (
    difference_text,
    equal_text,
    judged_by,
    mean_text,
    measure_text,
    p_text,
    power_text,
    title_of,
    untrained_text,
)
from crammed.study.result import RATES, StudyResult, is_loss, read_result
from crammed.study.spec.arms import read_study, study_names
from layout import difference_cell, row_of, table, wrapped
from study_figures import differences_figure

ALONE = "document_loss@0.15"


def study_table(name: str) -> str:
    """The arms of a study, best first, compared with its baseline."""
    return _arms_table(_study_of(name))


def experiments_table(*names: str) -> str:
    """Built-in studies: what each asks, what the paper found, what ours says, and the verdict."""
    head = row_of(
        *("study", "what it asks", "what the paper found", "what ours says"),
        *("compared at", "verdict on our arms"),
    )
    rows = []
    for name in names:
        asks = read_study(name).description.rstrip(".")
        if (record := _latest(name)) is None:
            rows.append(row_of(name, asks, "", "", "", "Not measured yet."))
            continue
        link = f"[{name}](../records/{record.name}/README.md)"
        said = [_said(record, who) for who in ("The paper", "Ours")]
        values = _study_of(record.name)
        rows.append(row_of(link, asks, *said, _once(equal_text, values), _once(_verdict, values)))
    return table(head, rows, _same_baselines(names))


def _same_baselines(names: Sequence[str]) -> str:
    """Which of these studies share runs of their baseline, to the last digit."""
    studies: dict[tuple[object, ...], dict[str, None]] = {}
    for name in names:
        values = _study_of(record.name) if (record := _latest(name)) else None
        for part in _parts(values).values() if values else ():
            for seed, run in part.arms[part.baseline].runs.items():
                key = part.corpus, seed, run.tokens, run.value(RATES[0])
                studies.setdefault(key, {})[name] = None
    shared = dict.fromkeys(tuple(own) for own in studies.values() if len(own) > 1)
    whole = [own for own in shared if not any(set(own) < set(other) for other in shared)]
    if not whole:
        return ""
    groups = "; ".join(f"{', '.join(own[:-1])} and {own[-1]}" for own in whole)
    return wrapped(
        f"Baselines that are the same runs (same settings, same seeds): {groups}. These "
        "studies share the chance variation of these runs, so they do not confirm each other."
    )


def _said(record: Path, who: str) -> str:
    """What a record says in short that somebody found, with links as from ``docs``."""
    text = (record / "README.md").read_text("utf-8")
    found = re.search(rf"^- \*\*{who}:\*\* (.+?)(?=\n- |\n\n)", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise SystemExit(f"{record.name}/README.md has no line '- **{who}:** ...'")
    return " ".join(found[1].split()).replace("](../", "](../records/")


def _once(say: Callable[[StudyResult], str], values: StudyResult) -> str:
    """What is to say about a study, once if it is the same for all of its budgets."""
    said: dict[str, list[str]] = {}
    for label, part in _parts(values).items():
        said.setdefault(say(part), []).append(label)
    if len(said) == 1:
        return next(iter(said))
    return "; ".join(f"{', '.join(labels)}: {words}" for words, labels in said.items())


def _verdict(part: StudyResult) -> str:
    """How many arms are better than the baseline, worse, or neither."""
    main = part.main_measure()
    if decidable(part) is False:
        return "not decidable at this budget"
    rows = [row for row in compare_arms(part, (main,)) if main in row]
    if not any(row[main]["p"] is not None for row in rows):
        return f"leads only, because a verdict takes {FEWEST} seeds"
    found = Counter(row[main]["verdict"] for row in rows if row["arm"] != part.baseline)
    words = {
        "better": "better",
        "worse": "worse",
        None: "no difference shown",
        "lead": f"with fewer than {FEWEST} seeds",
        "plateau": "still on the plateau, so not comparable",
    }
    return ", ".join(f"{found[key]} {said}" for key, said in words.items() if found[key])


def experiment_table(name: str) -> str:
    """What the record of a built-in study says, for each of its budgets, on the record's page."""
    values = _study_of(name)
    parts = []
    for label, part in _parts(values).items():
        parts += [f"With {label}, {Budget.parse(part.budget)}:\n"] if label else []
        parts.append(wrapped(*_verdicts(part)) + "\n")
        parts.append(f"![Differences from {part.baseline}]({_figure(label)})\n")
        parts.append(_arms_table(part))
    if lines := laws_of(values, analyse(values)):
        parts.append("".join(f"{wrapped(f'- {line}', below='  ')}\n" for line in lines))
    return "\n".join(parts)


def _latest(name: str) -> Path | None:
    """The latest record of a built-in study; None if it has none."""
    return max(layout.RECORDS.glob(f"????-??-??-study-{name}"), default=None)


def _parts(values: StudyResult) -> dict[str, StudyResult]:
    """The budgets of a study for which any run has finished, by label."""
    return {
        label: part
        for label, part in values.parts().items()
        if any(arm.values_of("tokens") for arm in part.arms.values())
    }


def _figure(label: str) -> str:
    return f"differences-{label}.svg" if label else "differences.svg"


def figures() -> Iterator[tuple[Path, str]]:
    """The files of the figures in the records of built-in studies, and their contents."""
    for name in study_names():
        if (record := _latest(name)) is not None:
            for label, part in _parts(_study_of(record.name)).items():
                yield record / _figure(label), differences_figure(part)


def _verdicts(part: StudyResult) -> list[str]:
    """Which arms differ from the baseline, in sentences."""
    main = part.main_measure()
    rows = [row for row in compare_arms(part, (main,)) if main in row]
    if decidable(part) is False:
        return ["Which arm is better cannot be decided with this budget."]
    if not any(row["arm"] == part.baseline for row in rows):
        return [f"The baseline `{part.baseline}` has no result."]
    tested = [row for row in rows if row[main]["p"] is not None]
    if not tested:
        return [f"Differences are leads, not findings: a verdict takes {FEWEST} seeds of each arm."]
    said = []
    for verdict in ("better", "worse"):
        own = [row for row in tested if row[main]["verdict"] == verdict]
        named = ", ".join(f"`{row['arm']}` ({difference_text(row[main], main)})" for row in own)
        said += [f"{verdict.capitalize()} than `{part.baseline}`: {named}."] if own else []
    left = sum(row[main]["verdict"] is None for row in tested)
    if slow := [f"`{row['arm']}`" for row in tested if row[main]["verdict"] == "plateau"]:
        said.append(f"Still on the plateau, so not comparable: {', '.join(slow)}.")
    if said and left:
        said.append(f"{counted(left, 'other arm')} cannot be told from it.")
    if not said:
        alike = "The arm cannot" if len(tested) == 1 else f"None of {len(tested)} arms can"
        said = [f"{alike} be told from `{part.baseline}`."]
    return said


def documents_table(name: str) -> str:
    """The arms of a study on documents by themselves and on packed rows, at 15 % masking."""
    values = _study_of(name)
    head = (
        "| arm | seeds | documents by themselves | difference, 95 % interval | p | packed rows "
        "| difference, 95 % interval | p |"
    )
    rows = []
    for row in compare_arms(values, (ALONE, RATES[0])):
        cells = [row["arm"], str(row["seeds"])]
        for key in (ALONE, RATES[0]):
            cells += [mean_text(row[key], key), *_found(values, row[key])]
        rows.append(row_of(*cells))
    return table(head, rows, _below(values, ALONE))


def judged_table(name: str, main: str, *others: str) -> str:
    """The arms of a study by scores, of which the first one's are tested."""
    values = _study_of(name)
    titles = ["arm", "seeds", _score_title(values, main), "difference, 95 % interval", "p"]
    titles += [_score_title(values, each) for each in others]
    lines = []
    rows = [row for row in compare_arms(values, [main, *others]) if main in row]
    for row in sorted(rows, key=lambda row: -row[main]["mean"]):
        tested = _found(values, row[main], main)
        scores = [_score_text(values, row, each) for each in (main, *others)]
        seeds = str(len(values.arms[row["arm"]].values_of(main)))
        lines.append(row_of(row["arm"], seeds, scores[0], *tested, *scores[1:]))
    return table(row_of(*titles), lines, _below(values, main))


def verdicts_table(name: str) -> str:
    """What the paper found of the arms that it tried, what a study says, and whether they agree."""
    values, found = _study_of(name), layout.RECORDS / name / "paper.yaml"
    paper: dict[str, str] = yaml.safe_load(found.read_text("utf-8"))
    main = values.main_measure()
    head = row_of("arm", "the paper", "ours, in nats, 95 % interval", "verdict")
    lines = []
    for row in compare_arms(values, (main,)):
        if row["arm"] in paper and main in row:
            one = row[main]
            cells = row["arm"], paper[row["arm"]], difference_cell(one)
            lines.append(row_of(*cells, _beside_no_gain(one)))
    return table(head, lines)


def _beside_no_gain(one: dict[str, Any]) -> str:
    """Whether a difference agrees with a paper that found no gain."""
    if one["verdict"] in ("better", "worse"):
        return "agrees" if one["verdict"] == "worse" else "disagrees"
    if one["verdict"] == "plateau":
        return "cannot tell: still on the plateau"
    if one["interval"] is None:
        return f"cannot tell: a verdict takes {FEWEST} seeds"
    return f"cannot tell: {-one['interval'][0]:.2f} nats better is not ruled out"


def power_table(name: str) -> str:
    """How often simulated studies find a difference, where there is one and where there is none."""
    result = layout.found(layout.RECORDS / name / "power.json")
    head = row_of(
        *("arms vary", "seeds", "arms", "any false positive", "all intervals hold"),
        *("worse arm found", "by Welch's test"),
    )
    rows = [
        row_of(
            *(each["vary"], str(each["seeds"]), str(each["arms"])),
            *(f"{100 * each[key]:.1f} %" for key in ("family_wise", "covered", "power")),
            f"{100 * each['welch']['power']:.1f} %",
        )
        for each in result["cases"]
    ]
    below = (
        f"{result['studies']:,} studies per line, one arm {result['shift']:g} deviations worse "
        f"(`tools/study_power.py`, commit {result['environment']['commit']})."
    )
    return table(head, rows, below)


def _arms_table(values: StudyResult) -> str:
    """The arms by held-out loss, or by bits per character where vocabularies may differ."""
    main = values.main_measure()
    name = main.partition("@")[0]
    measures = [rate.replace(RATES[0].partition("@")[0], name) for rate in RATES]
    scores = [each for each in judged_by(values) if not is_loss(each)]
    titles = [
        *("arm", "seeds", f"{measure_text(main).partition(',')[0]} at 15 % masking"),
        *("at 25 % masking", f"difference from {values.baseline}, 95 % interval", "p"),
        *(_score_title(values, each) for each in scores),
        "tokens",
    ]
    lines = []
    for row in compare_arms(values, [*measures, *scores]):
        if main not in row:
            cells = [row["arm"], "0", row.get("failed", "not run")]
            lines.append(row_of(*cells, *[""] * (len(titles) - 3)))
            continue
        few, many = (mean_text(row[each], each) for each in measures)
        difference, p = _found(values, row[main])
        judged = [_score_text(values, row, each) for each in scores]
        cells = [row["arm"], str(row["seeds"]), few, many, difference, p, *judged]
        lines.append(row_of(*cells, quantity(row["tokens"])))
    return table(row_of(*titles), lines, _below(values, main))


def _score_title(study: StudyResult, measure: str) -> str:
    """``glue.cola@bert-base`` -> ``CoLA by bert-base (untrained)``."""
    title = title_of(study, measure)
    twins = any(untrained_text(study, arm, measure) for arm in study.arms)
    return f"{title} (untrained)" if twins else title


def _score_text(study: StudyResult, row: dict[str, Any], measure: str) -> str:
    """A mean score, and that of the untrained twins if there are any."""
    if measure not in row:
        return ""
    twin = untrained_text(study, row["arm"], measure)
    return mean_text(row[measure], measure) + (f" ({twin})" if twin else "")


def _found(study: StudyResult, one: dict[str, Any], measure: str = RATES[0]) -> tuple[str, str]:
    """A difference with its interval, and its p-value, if the budget can decide anything."""
    if decidable(study) is False:
        return difference_text(one, measure), ""
    return difference_cell(one, measure), p_text(one)


def _below(study: StudyResult, measure: str) -> str:
    """How small a difference the table can show, and how the study was made."""
    made = study.environment
    assert made is not None
    return wrapped(
        power_text(study, measure),
        # Scores compare even if an arm is still on the plateau.
        *([decidable_text(study)] if is_loss(measure) and study.unigram is not None else []),
        f"Arms are compared at {equal_text(study)}.",
        f"Budget {Budget.parse(study.budget)}, on a machine with "
        f"{counted(made.cores or 0, 'core')}, commit {made.commits}.",
    )


def _study_of(name: str) -> StudyResult:
    """The study of the one record that a page names."""
    values = read_result(layout.RECORDS / name)
    if not values.arms:
        raise SystemExit(f"a page names {name}, which has no study.json in {layout.RECORDS}")
    return values
