"""Recompute what is published about studies from their raw numbers, without our own code.

    python tools/recompute.py [--root FOLDER]

Every table of a study in README.md, docs/ and records/ is read cell by cell: means, deviations,
differences, intervals, corrected p-values, scores and tokens; the sentences on which arms are
better and worse; the power; power laws, and the test of types; and the verdicts in
docs/experiments.md. Each number is computed again from the losses in ``study.json``, with numpy and
scipy alone: this shares no code with `crammed` (`recomputed` has the statistics, in plain loops). A
number agrees if it rounds to what is published. Ends with 1 if any does not.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

import recomputed as again
from recomputed import mean

ROOT = Path(__file__).resolve().parents[1]
KINDS = "study|experiment|documents|judged|verdicts"
BLOCK = re.compile(
    rf"<!-- ({KINDS}): (\S+)(?: (?!-->)(\S+))?(?: (?!-->)\S+)* -->\n(.*?)<!-- end of", re.DOTALL
)
NUMBER = re.compile(r"[-+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")
NEEDED = re.compile(
    r"To find a difference of ([\d.]+) in (\d+) % of such studies, "
    r"every arm would need (more than )?(\d+) seeds"
)
SCORES = {
    "BLiMP": "blimp",
    "CoLA": "glue.cola",
    "STS-B": "glue.stsb",
    "mean of tasks": "glue",
    "mean of tasks in gathered": "gathered",
    "mean of tasks in small": "small",
    "order": "gathered.order",
    "package": "gathered.package",
    "SUBJ": "small.subj",
    "SST-2": "small.sst2",
    "relations": "small.relations",
    "TREC": "small.trec",
}
POINTS = 9.0
"""How far two simulations of power may be apart; about four standard errors."""
UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


class Check:
    """Counts what was compared, and keeps what does not agree."""

    def __init__(self) -> None:
        self.count = 0
        self.faults: list[str] = []

    def same(self, where: str, shown: str, value: object) -> None:
        """Compare words, or a number that was rounded to its last digit."""
        self.count += 1
        if not (agrees(shown, value) if isinstance(value, float) else shown == value):
            self.faults.append(f"{where}: {shown!r} is published, and {value!r} is found")

    def numbers(self, where: str, shown: str, values: list[float]) -> None:
        found = NUMBER.findall(shown)
        self.same(f"{where}: numbers", str(len(found)), str(len(values)))
        for number, value in zip(found, values, strict=False):
            self.same(where, number, float(value))

    def near(self, where: str, shown: float, value: float, by: float) -> None:
        self.count += 1
        if abs(shown - value) > by:
            self.faults.append(f"{where}: {shown:g} is published, and {value:g} is found")


def agrees(shown: str, value: float) -> bool:
    """Whether a number rounds to what is shown, of which the last digit may be off by rounding."""
    digits = shown.replace(",", "").partition("e")
    decimals = len(digits[0].partition(".")[2]) - int(digits[2] or 0)
    return abs(float(shown.replace(",", "")) - value) <= 0.5000001 * 10.0**-decimals


def check_all(root: Path) -> Check:
    """Everything that the pages of a folder like that of the project publish about studies."""
    check = Check()
    pages = [root / "README.md", *(root / "docs").glob("*.md"), *root.glob("records/*/README.md")]
    for page in sorted(filter(Path.exists, pages)):
        for kind, name, measure, text in BLOCK.findall(page.read_text("utf-8")):
            study = json.loads((root / "records" / name / "study.json").read_text("utf-8"))
            where = f"{page.relative_to(root)}, {name}"
            if kind == "verdicts":
                check_beside_paper(check, where, study, text)
            else:
                check_block(check, kind, where, study, text, measure)
    check_experiments(check, root)
    return check


def check_block(
    check: Check, kind: str, name: str, study: dict[str, Any], text: str, measure: str
) -> None:
    """A table for each budget of a study, with the sentences around it, and the laws below."""
    parts = again.parts(study)
    pieces = re.split(r"^(?=With [^,\n]+, [^:\n]+:\n)", text, flags=re.MULTILINE)
    pieces = pieces[1:] if len(parts) > 1 else pieces
    check.same(f"{name}: tables", str(len(pieces)), str(len(parts)))
    for (label, part), piece in zip(parts.items(), pieces, strict=False):
        where = f"{name} {label}".strip()
        lines = [line for line in piece.split("\n") if line.startswith("| ")]
        main = measure or again.main_measure(study)
        main = "document_loss@0.15" if kind == "documents" else main
        head = cells(lines[0])
        for line in lines[1:]:
            row = dict(zip(positions(head), cells(line), strict=True))
            check_row(check, where, part, main, row)
        check.same(f"{where}: arms", str(len(lines) - 1), str(len(part["arms"])))
        check_power(check, where, part, main, " ".join(piece.split()))
        if kind == "experiment":
            check_verdicts(check, where, part, main, " ".join(piece.split()))
    if len(parts) > 1:
        check_laws(check, name, study, " ".join(text.replace("\n- ", "\n* - ").split()))


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def positions(head: list[str]) -> list[str]:
    """Titles of columns; those that belong to the measure before them name it."""
    last, found = "", []
    for title in head:
        if title == "p" or title.startswith("difference,"):
            found.append(f"{last}/{title}")
        else:  # a difference from the baseline is of what the whole table is about
            last = "" if title.startswith("difference from") else title
            found.append(title)
    return found


def check_row(
    check: Check, where: str, part: dict[str, Any], main: str, row: dict[str, str]
) -> None:
    arm, where = row["arm"], f"{where}, {row['arm']}"
    if arm not in part["arms"]:
        check.same(where, arm, None)
        return
    own = again.values(part, arm, main)
    check.same(f"{where}: seeds", row["seeds"], str(len(own)))
    for title, shown in row.items():
        at, measure = f"{where}: {title}", measure_of(title, main)
        if title == "tokens":
            number, _, unit = shown.partition(" ")
            check.same(at, number, mean(again.values(part, arm, "tokens")) / UNITS[unit])
        elif title.startswith("difference from") or "/difference" in title:
            check_difference(check, at, part, measure, arm, shown)
        elif title == "p" or title.endswith("/p"):
            found = again.tested(part, measure).get(arm)
            p = found["p"] if found and again.decidable(part) is not False else None
            words = None if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"
            check.same(at, shown, words or "")
        elif measure and title not in ("arm", "seeds"):
            check_mean(check, at, part, arm, measure, shown)


def measure_of(title: str, main: str) -> str:
    """The measure behind the title of a column."""
    title = title.partition("/")[0].partition(" (untrained)")[0].removesuffix(", partial")
    name, _, by = title.partition(" by ")
    if title.startswith("packed rows"):
        return "loss@0.15"
    if title.startswith("at 25"):
        return f"{main.partition('@')[0]}@0.25"
    key = SCORES.get(name) or (f"glue.{name.lower()}" if name in ("MRPC", "RTE") else None)
    if key is None:
        return main
    return f"{key}@{by}" if by and by != "themselves" else key


def check_mean(
    check: Check, at: str, part: dict[str, Any], arm: str, measure: str, shown: str
) -> None:
    """``4.138 ± 0.012 (3.9)``: mean, deviation over seeds, and the mean of untrained models."""
    own, twins = (again.values(part, arm, each) for each in (measure, f"untrained.{measure}"))
    wanted = ([mean(own)] if own else []) + ([again.deviation(own)] if len(own) > 1 else [])
    check.numbers(at, shown, wanted + ([mean(twins)] if twins else []))


def check_difference(
    check: Check, at: str, part: dict[str, Any], measure: str, arm: str, shown: str
) -> None:
    """``+0.123 (+0.102 to +0.144)``: difference from the baseline, and its interval."""
    if arm == part["baseline"]:
        check.same(at, shown, "")
        return
    own, base = (again.values(part, each, measure) for each in (arm, part["baseline"]))
    found = again.tested(part, measure).get(arm)
    wanted = [mean(own) - mean(base)]
    if found is not None and again.decidable(part) is not False:
        wanted += found["interval"]
    check.numbers(at, shown, wanted)


def check_power(check: Check, where: str, part: dict[str, Any], main: str, text: str) -> None:
    """The sentence on power, which is drawn anew here with other random numbers."""
    said = re.search(r"With (\d+) seeds, as arms vary here, a difference of (.*?) would", text)
    slow = again.plateau(part) if again.decidable(part) else set()
    groups = {arm: again.values(part, arm, main) for arm in part["arms"] if arm not in slow}
    possible = part["baseline"] in again.moderated(groups)
    check.same(f"{where}: power is said", str(bool(said)), str(possible))
    if not possible:
        return
    if said:
        own = [len(each) for arm, each in groups.items() if arm != part["baseline"]]
        usual = statistics.median_low(each for each in own if each > 1)
        check.same(f"{where}: seeds", said[1], str(max(3, usual)))
        sizes = [float(each.rstrip(",")) for each in NUMBER.findall(said[2])]
        found = again.power(part, main, sizes)
        shown = NUMBER.findall(text[said.end() :].partition("of such studies")[0])
        for number, share in zip(shown, found, strict=True):
            check.near(f"{where}: power", float(number), 100 * share, POINTS)
    if needed := NEEDED.search(text):
        size, often, more, seeds = needed.groups()
        least = int(seeds) + bool(more)
        for number, end in ((least, min), (least - 1, max)):
            if number > 2 and not (more and number == least):
                (share,) = again.power(part, main, [float(size)], number)
                bound = end(100 * share, float(often))  # as often with it, and not with one fewer
                check.near(f"{where}: seeds needed", float(often), bound, POINTS)


def check_verdicts(check: Check, where: str, part: dict[str, Any], main: str, text: str) -> None:
    wanted = again.verdicts(part, main)
    for verdict in ("better", "worse"):
        said = re.search(rf"{verdict} than `[^`]+`: (.*?)\.(?: [A-Z!]|$)", text, re.IGNORECASE)
        names = re.findall(r"`([^`]+)` \(", said[1]) if said else []
        own = sorted(arm for arm, found in wanted.items() if found == verdict)
        check.same(f"{where}: {verdict}", ", ".join(sorted(names)), ", ".join(own))


_BESIDE_NO_GAIN: dict[str | None, str] = {
    "better": "disagrees",
    "worse": "agrees",
    "plateau": "cannot tell: still on the plateau",
}


def check_beside_paper(check: Check, where: str, study: dict[str, Any], text: str) -> None:
    """Differences, and whether they agree with a paper that found no gain."""
    main = again.main_measure(study)
    wanted, tested = again.verdicts(study, main), again.tested(study, main)
    for arm, _, shown, verdict in (cells(line) for line in text.split("\n")[2:] if line):
        check_difference(check, f"{where}, {arm}", study, main, arm, shown)
        if found := _BESIDE_NO_GAIN.get(wanted[arm]):
            check.same(f"{where}, {arm}", verdict, found)
        else:
            (number,) = NUMBER.findall(verdict)
            check.same(f"{where}, {arm}", number, -tested[arm]["interval"][0])


def check_laws(check: Check, name: str, study: dict[str, Any], text: str) -> None:
    """Exponents of power laws, and the test of types."""
    found = again.laws(study)
    for kind, (height, exponent, losses) in found["types"].items():
        said = re.search(
            rf"- {re.escape(kind)}: loss (\S+) C\^(\S+);? .*?lowest loss (.*?)(?: \*|$)", text
        )
        check.same(f"{name}, {kind}: a law", str(bool(said)), "True")
        if said:
            check.near(f"{name}, {kind}: a", float(said[1]) / height, 1.0, 0.01)
            check.same(f"{name}, {kind}: exponent", said[2].strip(";"), exponent)
            best = re.findall(r"(\d\.\d{3}) at", said[3])
            check.same(f"{name}, {kind}: best", ", ".join(best), ", ".join(losses))
    p, least = (re.search(rf"{words} (\S+?)\)? ", text + " ") for words in ("p =", "attainable p:"))
    leads = "- types: leads only, because a verdict takes 3 seeds" in text
    check.same(f"{name}: types are leads", str(leads), str(found["seeds"] < 3))
    if found["seeds"] >= 3:
        check.near(f"{name}: p of types", float(p[1]) if p else -1.0, found["p"], found["by"])
        check.near(f"{name}: least p", float(least[1]) if least else -1.0, found["least"], 5e-4)
    for kind, (percent, worth) in found["shifts"].items():
        equal = r"loss at equal (?:size and )?FLOPs, equivalent to (\S+) times"
        said = re.search(rf"- {re.escape(kind)}: (\S+) % {equal}", text)
        check.same(f"{name}, {kind}: shift", said[1] if said else "nan", percent)
        check.same(f"{name}, {kind}: worth", said[2] if said else "nan", worth)


def check_experiments(check: Check, root: Path) -> None:
    """The last two columns of the table of studies: what arms have equal amounts of, and counts."""
    page = root / "docs" / "experiments.md"
    lines = page.read_text("utf-8").split("\n") if page.exists() else []
    for line in lines:
        if link := re.match(r"\| \[[^\]]+\]\(\.\./records/([^/]+)/", line):
            study = json.loads((root / "records" / link[1] / "study.json").read_text("utf-8"))
            *_, equal, verdict = cells(line)
            main = again.main_measure(study)
            counted = {label: again.counts(p, main) for label, p in again.parts(study).items()}
            groups: dict[str, list[str]] = {own: [] for own in counted.values()}
            for label, own in counted.items():
                groups[own].append(label)
            wanted = "; ".join(
                f"{', '.join(labels)}: {own}" if len(groups) > 1 else own
                for own, labels in groups.items()
            )
            check.same(f"{page.name}, {link[1]}: verdict", verdict, wanted)
            span = again.flops_span(next(iter(again.parts(study).values())))
            for number, value in zip(re.findall(r"\d\.\d\d", equal), span, strict=False):
                check.same(f"{page.name}, {link[1]}: FLOPs", number, value)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", type=Path, default=ROOT)
    done = check_all(root := parser.parse_args().root)
    if not done.count:
        sys.exit(f"error: {root} publishes nothing about studies: name a folder with records/")
    said = f"{done.count:,} published numbers and words; {len(done.faults)} do not agree"
    print("\n".join([*done.faults, said]))
    sys.exit(1 if done.faults else 0)
