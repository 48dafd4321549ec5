"""Documents are kept by their language."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from crammed.budget import Budget
from crammed.cli import training
from crammed.config import CleanConfig
from crammed.data.corpus import Corpus
from crammed.data.preparing.cleaning.language import BEGINNING, identified_by, language_filter
from crammed.data.show import describe_corpus
from crammed.errors import InputError
from crammed.report.page import write_report
from support.corpora import step_of
from support.text import MODEL, documents

pytest.importorskip("py3langid", reason="data.clean.languages needs it")

TEXTS = {
    "en": "The library opens at nine in the morning and closes when the last reader has gone home.",
    "de": "Die Bibliothek öffnet um neun Uhr und schließt, wenn der letzte Leser gegangen ist.",
    "fr": "La bibliothèque ouvre à neuf heures et ferme quand le dernier lecteur est parti.",
    "ja": "図書館は朝九時に開き、最後の読者が帰ると閉まります。",
    "ru": "Библиотека открывается в девять утра и закрывается, когда уходит последний читатель.",
}


@pytest.fixture(scope="module")
def german() -> Callable[[str], str | None]:
    return language_filter(["de", "ja"])


def test_documents_are_kept_by_their_language(german: Callable[[str], str | None]) -> None:
    assert [code for code, text in TEXTS.items() if german(text) is not None] == ["de", "ja"]
    for nothing in ("", "12 345,67 + 8", "\n"):
        assert german(nothing) is None


def test_the_beginning_decides(german: Callable[[str], str | None]) -> None:
    text = TEXTS["de"] * 20
    assert len(text) > BEGINNING
    assert german(text + TEXTS["en"] * 100) is not None
    assert german(TEXTS["en"] * 20 + text * 10) is None


def test_an_unknown_language_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"no language 'eng': codes are .* the nearest are en, "):
        language_filter(["de", "eng"])
    with pytest.raises(InputError, match="the nearest are none"):
        language_filter(["☃☃☃"])
    with pytest.raises(ValueError, match="at least 1 item"):
        CleanConfig(languages=())


def test_corpus_summary_report_and_card_say_that_the_rules_are_left(
    tmp_path: Path, make_corpus: Callable[..., Corpus], capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [*documents(200), *(f"{text} {n}" for n in range(20) for text in TEXTS.values())]
    corpus = make_corpus(texts, "data.clean.languages=[en]")
    step = step_of(corpus, "languages")
    assert (step["kept"], step["dropped"]) == (220, 80)
    why = f"data.clean.languages: {identified_by()}, a trained model, chose the documents"
    assert corpus.manifest["outside_rules"] == why
    assert dict(describe_corpus(corpus))["outside the rules"] == [why]
    run = tmp_path / "run"
    training.pretrain(MODEL, corpus.path, Budget.parse("2updates"), None, run)
    assert re.search(rf"outside the rules +{re.escape(why)}", capsys.readouterr().out)
    assert json.loads((run / "summary.json").read_text())["outside_rules"] == why
    assert f"outside the rules of Cramming: {why}" in (run / "export" / "README.md").read_text()
    page = write_report([run], tmp_path / "report.html").read_text()
    assert f"This run does not count as one of Cramming. {why}." in page


def test_other_corpora_say_nothing_of_it(corpus: Corpus) -> None:
    assert "outside_rules" not in corpus.manifest
    assert "outside the rules" not in dict(describe_corpus(corpus))
