"""The page of a study: what its arms differ by, with and without the folders of its runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from crammed.cli.models import report
from crammed.errors import InputError
from crammed.report.curves import read_curves
from crammed.report.study import _ticks, write_study_page
from crammed.study.findings.scaling import cells_of
from crammed.study.findings.table import judged_by
from crammed.study.result import StudyResult
from support.html import check_balanced
from support.scores import GLUE, evaluated

FIXTURES = Path(__file__).parents[1] / "fixtures" / "2026-11-21"
RECORDS = sorted((Path(__file__).parents[2] / "records").glob("*/study.json"))


def run(loss: float, **more: Any) -> dict[str, Any]:
    return {
        "loss@0.15": loss,
        "loss@0.25": loss + 0.1,
        "tokens": 2_000_000,
        "seconds": 90.0,
        **more,
    }


def study(**more: Any) -> dict[str, Any]:
    arms = {
        "plain": ["crammed", "model.layers=2"],
        "good": ["crammed", "model.layers=2", "optim.lr=1e-3"],
        "old": ["crammed-2022"],
    }
    losses = {"plain": (4.0, 4.01, 4.02), "good": (3.5, 3.51, 3.52), "old": (4.0, 4.03, 4.01)}
    made: dict[str, Any] = {
        arm: {"words": words, "runs": {str(n): run(loss) for n, loss in enumerate(losses[arm])}}
        for arm, words in arms.items()
    }
    made["<broken>"] = {"words": ["crammed"], "runs": {"0": {"failed": "no <room> in memory"}}}
    return {"corpus": "abcdef", "budget": "2e6tok", "baseline": "plain", "arms": made, **more}


def page(folder: Path, values: dict[str, Any]) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "study.json").write_text(json.dumps(values))
    return check_balanced(write_study_page(folder, folder / "report.html").read_text("utf-8"))


def test_a_study_without_its_runs_has_all_but_curves_and_links(tmp_path: Path) -> None:
    text = page(tmp_path / "mine", study(unigram=6.0, description="Two ways (section 4)."))
    assert "<h1>mine</h1>" in text
    assert (
        ">Two ways (section 4). A study of 4 arms, budget 2 M tokens each, compared with plain."
        in text
    )
    assert "Decidable at this budget: plain ends 1.99 nats below" in text
    assert "<b>Held-out loss, 15 % masked, better than plain:</b> good.</p>" in text
    good = text[text.index('<tr class="better"><td class="arm">good') :]
    assert "-0.500" in good[: good.index("</tr>")]
    assert 'class="verdict">better<' in good[: good.index("</tr>")]
    assert not re.search(r'<tr class="(better|worse)"><td class="arm">(old|plain)', text)
    assert "a difference of 0.02, 0.05, 0.1 or 0.2 would be found in" in text
    assert text.count("failed: no &lt;room&gt; in memory") == 2
    assert "&lt;broken&gt;" in text
    assert "recipe <code>crammed-2022</code>" in text
    assert "<code>optim.lr=1e-3</code>" in text
    assert '<code class="gone">model.layers=2</code>' in text
    assert "1m 30s" in text
    assert "Held-out loss during training" not in text
    assert not re.findall(r'(?:src|href)="', text)


def test_only_the_baseline_is_called_so(tmp_path: Path) -> None:
    values = study()
    assert page(tmp_path / "whole", values).count('class="n from">baseline<') == 1
    values["arms"]["plain"]["runs"] = {"0": {"failed": "no memory"}}
    assert 'class="n from">baseline<' not in page(tmp_path / "without", values)


def test_arms_of_which_runs_failed_are_marked(tmp_path: Path) -> None:
    values = study()
    assert "(some failed)" not in page(tmp_path, values)
    values["arms"]["good"]["runs"]["3"] = {"failed": "no memory"}
    assert page(tmp_path, values).count('<td class="n seeds">3 (some failed)</td>') == 1


def test_nothing_is_coloured_near_the_unigram_model(tmp_path: Path) -> None:
    text = page(tmp_path / "mine", study(unigram=4.5))
    assert "<b>Not decidable at this budget.</b> plain ends 0.49 nats below" in text
    assert "-0.500" in text
    assert not re.search(r'class="(better|worse)"|95 % interval|class="verdict"', text)


def test_a_single_seed_has_no_intervals_to_explain(tmp_path: Path) -> None:
    several, values = page(tmp_path / "several", study()), study()
    for entry in values["arms"].values():
        entry["runs"] = {"0": entry["runs"]["0"]}
    single = page(tmp_path / "single", values)
    assert "Leads, not findings: a verdict takes 3 seeds. One seed tells no variance." in single
    for words in ("Intervals hold for all arms", "better than plain:</b>"):
        assert words in several
        assert words not in single
    assert "no arm is shown to differ" not in single


def test_scores_have_an_axis_of_their_own(tmp_path: Path) -> None:
    values = study()
    for entry in values["arms"].values():
        for number, each in enumerate(entry["runs"].values()):
            each["scores"] = {"blimp": 60.0 + number / 10}
    text = page(tmp_path / "mine", values)
    assert text.count('<table class="forest">') == 2
    assert "Differences from plain: BLiMP" in text


def test_what_runs_cost_is_shown_where_it_is_known(tmp_path: Path) -> None:
    values = study()
    text = page(tmp_path / "mine", values)
    assert "peak memory" not in text
    assert "nergy" not in text
    known = {"exaflop": 2e-5, "memory_bytes": 1_500_000_000, "joules": 3.6e6}
    values["arms"]["good"]["runs"]["0"] |= known
    text = page(tmp_path / "mine", values)
    assert "20 TFLOP" in text
    assert "1.5 GB" in text
    assert "3.6 MJ" in text
    assert "Energy is all that the device used" in text


def with_runs(folder: Path) -> dict[str, Any]:
    """A study of two arms, two seeds each, whose runs are there; one run of a third was damaged."""
    values = study()
    values["arms"] = {arm: values["arms"][arm] for arm in ("plain", "good", "old")}
    heavy = shutil.ignore_patterns("corpus", "evaluation", "export", "final", "report.html")
    for arm in values["arms"]:
        for seed in ("0", "1"):
            shutil.copytree(FIXTURES / "finished", folder / f"{arm}-{seed}", ignore=heavy)
        values["arms"][arm]["runs"]["0"]["updates"] = 300
        for seed in ("0", "1"):
            (folder / f"{arm}-{seed}" / "report.html").write_text("<html></html>")
    (folder / "plain-0" / "report.html").unlink()
    (folder / "old-0" / "metrics.jsonl").write_text("{}\n")
    for seed in ("0", "1"):
        (folder / f"old-{seed}" / "report.html").unlink()
    (folder / "old-1" / "summary.json").unlink()
    return values


def test_runs_that_are_there_have_curves_and_links(tmp_path: Path) -> None:
    text = page(tmp_path / "mine", with_runs(tmp_path / "mine"))
    assert "Held-out loss during training" in text
    assert text.count("<svg viewBox=") == 3  # a key for each arm; one run of old has its log
    assert "tokens read" in text
    assert "charged time, seconds" in text
    links = re.findall(r'<a href="([^"]*)"', text)
    assert links == [f"{arm}-{n}/report.html" for arm in ("plain", "good") for n in (0, 1)]
    assert "<h1>plain-0</h1>" in (tmp_path / "mine" / links[0]).read_text("utf-8")
    before = (tmp_path / "mine" / links[0]).stat().st_mtime_ns
    elsewhere = tmp_path / "pages" / "study.html"
    text = write_study_page(tmp_path / "mine", elsewhere).read_text("utf-8")
    assert f'href="../mine/{links[0]}"' in text
    assert (tmp_path / "mine" / links[0]).stat().st_mtime_ns == before
    linked = tmp_path / "pages" / "link"
    linked.symlink_to(tmp_path / "mine")
    text = write_study_page(linked, linked / "study.html").read_text("utf-8")
    assert re.findall(r'<a href="([^"]*)"', text) == links
    text = write_study_page(linked, elsewhere).read_text("utf-8")
    assert f'href="../mine/{links[0]}"' in text
    evaluated(tmp_path / "mine" / "plain-0", glue=GLUE)
    write_study_page(tmp_path / "mine", elsewhere)
    assert "Scores after fine-tuning" in (tmp_path / "mine" / links[0]).read_text("utf-8")


def with_corpora(values: dict[str, Any]) -> dict[str, Any]:
    """The study with a corpus of its own for each arm, and so in bits per character."""
    for arm, entry in values["arms"].items():
        entry["corpus"] = arm
        for each in entry["runs"].values():
            each["bits_per_character@0.15"] = each["loss@0.15"] / 3.0
    return values


def test_arms_with_other_vocabularies_have_curves_in_bits(tmp_path: Path) -> None:
    same, other = with_runs(tmp_path / "same"), with_corpora(with_runs(tmp_path / "other"))
    (nats, *_), (bits, *_) = (
        read_curves(tmp_path / name, StudyResult.model_validate(values))["plain"]
        for name, values in (("same", same), ("other", other))
    )
    assert (bits.tokens == nats.tokens).all()
    factor = bits.loss / nats.loss
    assert factor == pytest.approx([factor[0]] * len(factor))
    assert factor[0] == pytest.approx(1.7332518101778502 / 5.347958096590909)
    assert ylabels(page(tmp_path / "same", same)) == {"nats per token"}
    assert ylabels(page(tmp_path / "other", other)) == {"bits per character"}


def ylabels(text: str) -> set[str]:
    """The units of the losses in the figures of a page."""
    return set(re.findall(r"held-out loss, (\w+ per \w+)", text))


def test_budgets_are_compared_each_by_itself(tmp_path: Path) -> None:
    arms: dict[str, Any] = {}
    for label, better in (("x1", 0.0), ("x4", 0.5)):
        for number, arm in enumerate(("post.2x64", "post.4x64", r"$\pre$.2x64", r"$\pre$.4x64")):
            losses = (4.0 - better + number / 10 + seed / 100 for seed in range(3))
            more = {
                "exaflop": (1 + 3 * (label == "x4")) * 1e-6,
                "parameters": 100_000 * (1 + number % 2),
            }
            made = {str(n): run(loss, **more) for n, loss in enumerate(losses)}
            words = ["crammed", f"model.layers={arm[-4]}", f"budget.limit={label}"]
            arms[f"{arm}@{label}"] = {"words": words, "runs": made}
    budgets = {"x1": "1e6tok", "x4": "4e6tok"}
    base = "post.2x64@x1"
    text = page(tmp_path, {**study(budgets=budgets, unigram=4.9), "arms": arms, "baseline": base})
    x1, x4 = (text.index(f'class="part">x{n}: {n} M tokens<') for n in (1, 4))
    assert text[:x1].count("<svg") == 4 + 2 * 2  # keys; loss against FLOPs, and against parameters
    assert "post: loss " in text[:x1]
    assert r"$\pre$, x4" in text[:x1]  # which is no formula
    assert "Not decidable at this budget." in text[x1:x4]
    assert 'class="verdict">worse<' not in text[x1:x4]
    assert 'class="verdict">worse<' in text[x4:]
    assert text[x1:x4].count('<td class="arm">') == 4
    assert ylabels(text) == {"nats per token"}
    values = with_corpora({**study(budgets=budgets), "arms": arms, "baseline": base})
    bits = page(tmp_path, values)
    assert ylabels(bits) == {"bits per character"}
    assert cells_of(StudyResult.model_validate(values))[0].mean == pytest.approx(4.01 / 3)


def test_an_arm_of_one_budget_takes_away_no_figure(tmp_path: Path) -> None:
    more = {"exaflop": 1e-6, "parameters": 100_000}
    arms = {
        arm: {"words": ["crammed"], "runs": {str(n): run(4.0 + n / 100, **more) for n in range(3)}}
        for arm in ("a@x1", "c@x1", "a@x2", "c@x2", "b@x2")
    }
    budgets = {"x1": "1e6tok", "x2": "2e6tok"}
    text = page(tmp_path, {**study(budgets=budgets, unigram=6.0), "arms": arms, "baseline": "a@x1"})
    assert "could not be drawn" not in text
    assert "A study of 3 arms" in text


def test_untrained_twins_stand_beside_scores(tmp_path: Path) -> None:
    values = study()
    for seed, each in values["arms"]["good"]["runs"].items():
        each["scores"] = {"glue.cola": 20.0 + int(seed), "untrained.glue.cola": 3.0}
    text = page(tmp_path, values)
    assert text.count('<table class="forest">') == 2
    assert '<td class="n twin">3.0</td>' in text


@pytest.mark.parametrize("file", RECORDS, ids=lambda file: file.parent.name)
def test_records_made_before_have_a_page(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, fewer in (("power.STUDIES", 100), ("scaling.DRAWS", 20), ("exchange.SHUFFLES", 19)):
        monkeypatch.setattr(f"crammed.study.findings.{name}", fewer)  # not what is asked here
    text = write_study_page(file.parent, tmp_path / "page.html").read_text("utf-8")
    values = json.loads(file.read_text())
    known = "ecidable at this budget" in text
    assert known == ("unigram" in values)
    assert ("unigram cross-entropy is not part of this result" in text) != known
    assert "Undefined" not in text
    parts = StudyResult.model_validate(values).parts().values()
    rows = sum(len(part.arms) * len(judged_by(part)) for part in parts)
    assert text.count('<td class="arm">') == rows


def test_report_leads_to_the_page_of_a_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "study.json").write_text(json.dumps(study()))
    report([tmp_path / "study"], tmp_path / "page.html")
    assert capsys.readouterr().out.strip() == str(tmp_path / "page.html")
    assert "<title>study</title>" in (tmp_path / "page.html").read_text("utf-8")
    with pytest.raises(InputError, match="is a study, which gets its own report"):
        report([tmp_path / "study", tmp_path / "run"], tmp_path / "page.html")


def test_a_page_without_scipy_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    (tmp_path / "study.json").write_text(json.dumps(study()))
    with pytest.raises(InputError, match=r"study needs scipy: pip install 'crammed\[studies\]'$"):
        report([tmp_path], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_ticks_are_round_numbers_within_the_axis() -> None:
    for limit in (0.013, 0.9, 7.0, 130.0):
        ticks = [tick for tick, _ in _ticks(limit)]
        assert ticks == sorted({*ticks, *(-tick for tick in ticks)})
        assert 3 <= len(ticks) <= 7
        assert max(ticks) <= limit
    assert [f"{tick:.{digits}f}" for tick, digits in _ticks(0.013)][-1] == "0.010"


def test_links_lead_to_folders_of_any_name(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9 #1")
    values = with_runs(folder)
    (folder / "study.json").write_text(json.dumps(values))
    text = write_study_page(folder, tmp_path / "report.html").read_text("utf-8")
    assert 'href="caf%E9%20%231/plain-0/report.html"' in text
