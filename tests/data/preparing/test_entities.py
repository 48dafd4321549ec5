"""Named entities become plain words for their kinds."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from crammed.config import CleanConfig
from crammed.data.corpus import Corpus
from crammed.data.heldout import heldout_texts
from crammed.data.preparing.cleaning import entities
from crammed.data.preparing.cleaning.entities import entity_step, found_by, pieces, words_for
from crammed.data.preparing.cleaning.steps import clean, steps_of
from crammed.data.preparing.extension import extend
from crammed.data.show import describe_corpus, dropped_samples
from crammed.errors import InputError
from crammed.runs.resuming import asked_in
from crammed.terminal.progress import SILENT
from support.corpora import prepared, step_of
from support.text import documents, tiny, write_jsonl

spacy = pytest.importorskip("spacy", reason="data.clean.entities needs it")

RULES = {
    "sailor": "PERSON",
    "Ada Lovelace": "PERSON",
    "seven lanterns": "WORK_OF_ART",
    "harbour": "FAC",
    "Mill & Söhne": "ORG",
    "day 7": "DATE",
}


def saved(folder: Path, rules: dict[str, str] = RULES) -> str:
    """A pipeline that finds what its rules name: trained ones are large."""
    nlp = spacy.blank("en")
    ruler = nlp.add_pipe("entity_ruler")
    ruler.add_patterns([{"label": kind, "pattern": name} for name, kind in rules.items()])
    nlp.to_disk(folder)
    return str(folder)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(tmp_path_factory.mktemp("pipelines") / "rules")


def by_hand(text: str) -> str:
    """The same by regular expressions, for text in which words end where tokens do."""
    for name, kind in RULES.items():
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", words_for(kind), text)
    return text


def made_with(named: str | None, out: Path, *words: str) -> Corpus:
    """A corpus of `documents(200)` that a pipeline has cleaned, if one is named."""
    text = write_jsonl(out.with_name("text.jsonl"), documents(200))
    given = () if named is None else (f"data.clean.entities={named}",)
    return prepared(out, text, *given, *words)


def test_kinds_stand_for_entities_and_all_else_stays(pipeline: str) -> None:
    step = entity_step(pipeline)
    given = "  Ada Lovelace,\tthe sailor of Mill & Söhne—on day 7:\n\nseven lanterns! day 70 "
    wanted = "  person,\tthe person of organization—on date:\n\nwork of art! day 70 "
    assert step(given) == wanted == by_hand(given)
    for text in (*documents(50), "", " \n", "\u00a0café\r\n"):
        assert step(text) == by_hand(text)
    assert step("half \ud800 a pair") == "half ? a pair"


def test_kinds_are_ordinary_words() -> None:
    labels = ["PERSON", "GPE", "LOC", "MISC", "WORK_OF_ART", "CARDINAL"]
    words = ["person", "place", "location", "name", "work of art", "number"]
    assert [words_for(label) for label in labels] == words


def test_long_texts_are_cut_where_lines_or_words_end() -> None:
    draw = random.Random(0)
    size = entities.PIECE
    for letters in ("ab ", "ab\n ", "ab", "ab \u2028"):
        text = "".join(draw.choices(letters, k=3 * size + 7))
        cut = list(pieces(text))
        assert "".join(cut) == text
        assert len(cut) >= 4
        assert all(len(piece) <= size for piece in cut)
        ends = {piece[-1] for piece in cut[:-1]}
        assert ends <= ({"\n"} if "\n" in letters else {" ", "\u2028"} & {*letters} or {"a", "b"})
    assert list(pieces("x" * size)) == ["x" * size]
    assert list(pieces("")) == []


def test_an_entity_is_found_in_every_piece(pipeline: str) -> None:
    line = "the sailor counts seven lanterns near the harbour\n"
    text = line * (2 * entities.PIECE // len(line) + 2)
    assert entity_step(pipeline)(text) == by_hand(text)


def test_it_is_counted_sampled_and_outside_the_rules(tmp_path: Path, pipeline: str) -> None:
    texts = documents(200)
    made = made_with(pipeline, tmp_path / "made")
    step = step_of(made, "entities")
    assert step["changed"] == sum(text != by_hand(text) for text in texts) > 100
    assert step["dropped"] == 0
    assert re.fullmatch(r"rules@[0-9a-f]{64}", made.manifest["data"]["clean"]["entities"])
    why = f"data.clean.entities: rules ({found_by()}), a trained model, chose words to replace"
    assert made.manifest["outside_rules"] == why
    assert dict(describe_corpus(made))["outside the rules"] == [why]
    assert any(each["step"] == "entities, changed" for each in dropped_samples(made))
    left = [*heldout_texts(made.heldout)]
    assert left
    assert not any(name in text for text in left for name in ("sailor", "seven lanterns"))
    plain = made_with(None, tmp_path / "plain")
    assert "entities" not in plain.manifest["data"]["clean"]
    assert plain.sha256 != made.sha256


def test_given_heldout_text_is_simplified_as_well(tmp_path: Path, pipeline: str) -> None:
    texts = documents(60, seed=5)
    given = (str(write_jsonl(tmp_path / "heldout.jsonl", texts)),)
    text = write_jsonl(tmp_path / "text.jsonl", documents(200))
    made = prepared(tmp_path / "out", text, f"data.clean.entities={pipeline}", heldout=given)
    assert [*heldout_texts(made.heldout)] == [by_hand(each) for each in texts]


def test_workers_make_the_same_bytes_wherever_the_folder_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    for workers in (1, 3):
        place = tmp_path / f"{workers}"
        place.mkdir()
        saved(place / "rules")
        monkeypatch.chdir(place)
        made.append(made_with("rules", place / "out", f"compute.workers={workers}"))
    assert made[0].sha256 == made[1].sha256


def test_another_pipeline_cleans_again(tmp_path: Path) -> None:
    first = made_with(saved(tmp_path / "rules"), tmp_path / "one")
    second = made_with(saved(tmp_path / "rules", {"sailor": "ORG"}), tmp_path / "two")
    assert first.manifest["data"] != second.manifest["data"]
    kept = [*heldout_texts(second.heldout)]
    assert any("old organization" in text for text in kept)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "no_such_pipeline",
            r"no_such_pipeline is neither .*: type python -m spacy download no_su",
        ),
        (
            "folder/none",
            r"folder/none is neither an installed spaCy pipeline nor the folder of one",
        ),
    ],
)
def test_a_missing_pipeline_says_what_to_type(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as raised:
        made_with(name, tmp_path / "out")
    assert "\n" not in str(raised.value)


def test_what_finds_nothing_or_is_damaged_is_refused(tmp_path: Path) -> None:
    spacy.blank("en").to_disk(tmp_path / "blank")
    with pytest.raises(InputError, match="blank finds no named entities: name a pipeline with"):
        steps_of(CleanConfig(entities=str(tmp_path / "blank")))
    broken = Path(saved(tmp_path / "broken"))
    (broken / "config.cfg").write_text("[nlp]\nlang = 3\n")
    with pytest.raises(InputError, match=r"^data\.clean\.entities: .*broken cannot be loaded: "):
        steps_of(CleanConfig(entities=str(broken)))
    found = entities.located(saved(tmp_path / "rules"))
    saved(tmp_path / "rules", {"sailor": "ORG"})
    with pytest.raises(InputError, match="rules changed while text was cleaned: repeat"):
        steps_of(CleanConfig(entities=found))


def test_a_corpus_is_extended_with_the_same_pipeline_alone(tmp_path: Path, pipeline: str) -> None:
    base = made_with(pipeline, tmp_path / "base")
    more = write_jsonl(tmp_path / "more.jsonl", documents(100, seed=1))

    def extended(base: Corpus, *words: str) -> Corpus:
        config = tiny("crammed", *words, data={"sources": [str(more)]})
        return extend(base, config.data, tmp_path / f"with-{base.path.name}", SILENT)

    other = saved(tmp_path / "other", {"sailor": "ORG"})
    for words in ((), (f"data.clean.entities={other}",)):
        with pytest.raises(
            InputError, match="base was cleaned with the spaCy pipeline rules, and stores only"
        ):
            extended(base, *words)
    made = extended(base, f"data.clean.entities={pipeline}")
    assert made.manifest["data"] == base.manifest["data"]
    assert made.manifest["outside_rules"] == base.manifest["outside_rules"]
    both = [*documents(200), *documents(100, seed=1)]
    assert step_of(made, "entities")["changed"] == sum(text != by_hand(text) for text in both)
    plain = made_with(None, tmp_path / "plain")
    with pytest.raises(InputError, match=r"entities: .*plain was cleaned without it; leave it out"):
        extended(plain, f"data.clean.entities={pipeline}")


def test_a_strangers_run_loads_no_pipeline(tmp_path: Path, pipeline: str) -> None:
    run = tmp_path / "run"
    run.mkdir()
    word = f"data.clean.entities={pipeline}"
    (run / "config.json").write_text(tiny("crammed", word).model_dump_json())
    with pytest.raises(InputError, match=r"run was begun with the pipeline .* if you trust it, ty"):
        asked_in(run, None, [], {})
    assert asked_in(run, None, [word], {}).config.data.clean.entities == pipeline


def test_it_is_the_last_step_so_that_others_see_the_text(pipeline: str) -> None:
    steps = steps_of(CleanConfig(entities=pipeline, personal="mask", gopher=False))
    assert [name for name, _ in steps][-1] == "entities"
    verdict = clean("The sailor wrote to ada@lovelace.org.", steps)
    assert verdict.text == "The person wrote to email address."
    assert [change.step for change in verdict.changes] == ["personal", "entities"]


def test_what_is_shared_names_no_folder(pipeline: str) -> None:
    shared = tiny("crammed", f"data.clean.entities={pipeline}").without_folders()
    assert shared["data"]["clean"]["entities"] == "rules"
