from __future__ import annotations

import fcntl
import itertools
import json
import math
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from crammed.data import shards
from crammed.data.corpus import Corpus
from crammed.data.heldout import heldout_documents, heldout_texts, rows_of_corpus
from crammed.data.preparing import driver
from crammed.data.preparing.driver import prepare
from crammed.data.preparing.manifest import changed_files, unchanged
from crammed.data.preparing.select.selection_job import documents_to_pack
from crammed.data.show import describe_corpus
from crammed.data.tokenization.tokenizer import CLS, SEP
from crammed.data.tokenization.training import train_from_texts
from crammed.doctor import TINY
from crammed.errors import InputError
from crammed.terminal.progress import SILENT
from support.command import dying, python
from support.corpora import prepared, prepared_and_told, step_of, tokens_of
from support.reading import Cleaning, write_files
from support.samples import tarred, zipped
from support.text import documents, sentences, tiny, write_jsonl, write_rows


@pytest.mark.parametrize("sep", [True, False])
@pytest.mark.parametrize("cls", [True, False])
def test_rows_are_the_documents_tokens_and_what_frames_them(
    make_corpus: Callable[..., Corpus], sep: bool, cls: bool
) -> None:
    texts = documents(300)
    corpus = make_corpus(texts, f"data.sep={sep}".lower(), f"data.cls={cls}".lower())
    held = list(heldout_texts(corpus.heldout))

    def tokens(text: str) -> list[int]:
        ids = corpus.tokenizer.encode(text, add_special_tokens=False).ids
        return [*[CLS] * cls, *ids, *[SEP] * sep]

    expected = [token for text in texts if text not in held for token in tokens(text)]
    stream = tokens_of(corpus)
    assert stream == expected[: len(stream)]
    assert len(expected) - len(stream) == corpus.manifest["tokens_left_out"] < corpus.row_length
    assert corpus.manifest["tokens"] == len(expected)
    assert corpus.manifest["documents"] == 300 - len(held)
    assert 0 < len(held) < 30
    assert (SEP in rows_of_corpus(corpus, 500).ids) == sep


def test_held_out_tokens_are_counted_without_those_that_frame_documents(
    make_corpus: Callable[..., Corpus],
) -> None:
    corpus = make_corpus(documents(200), "data.sep=false", "data.cls=true")
    held = list(heldout_texts(corpus.heldout))
    tokens = sum(len(corpus.tokenizer.encode(text, add_special_tokens=False)) for text in held)
    share = corpus.manifest["heldout"]["tokens_per_character"]
    assert share == pytest.approx(tokens / sum(map(len, held)))


def test_what_needs_sep_is_refused_without_it() -> None:
    for word, said in (
        ("train.attention=document", r"needs data\.sep=true"),
        ("data.orders=[fragments]", "fragments counts"),
        ("data.orders=[long-documents]", "long-documents counts"),
    ):
        with pytest.raises(InputError, match=said):
            tiny("crammed", "data.sep=false", word)


def test_surrogates_and_control_characters_do_no_harm(make_corpus: Callable[..., Corpus]) -> None:
    make_corpus([*documents(100), "half a pair \ud800 here", "a \x00 null and a \x07 bell"])


def test_half_a_pair_in_the_name_of_a_field_does_no_harm(tmp_path: Path) -> None:
    rows = [*({"text": text} for text in documents(100)), {"half \ud800": "a pair"}]
    made = prepared(tmp_path / "out", write_rows(tmp_path / "a.json", rows), "data.unreadable=skip")
    assert made.manifest["skipped"][0]["records"] == 1


def test_unigram_cross_entropy_by_hand(corpus: Corpus) -> None:
    counts = np.bincount(corpus.read(np.arange(corpus.rows)).flatten(), minlength=corpus.vocab_size)
    counts = counts.astype(float) + 1
    held = [
        token
        for text in heldout_texts(corpus.heldout)
        for token in (*corpus.tokenizer.encode(text, add_special_tokens=False).ids, SEP)
    ]
    expected = -sum(math.log(counts[t] / counts.sum()) for t in held) / len(held)
    assert corpus.manifest["heldout"]["unigram_cross_entropy"] == pytest.approx(expected, rel=0.01)


HELDOUT_TOO_SHORT = (
    "^the held-out text is shorter than one row of 32 tokens: add text, raise "
    "data.heldout_fraction or lower data.row_length$"
)


@pytest.mark.parametrize(
    ("texts", "fraction", "words"),
    [
        (["", " "], 0.004, "no text"),
        (["one document only, though a long one " * 50], 0.004, "too few"),
        (["short", "words", "three"], 0.4, "too little text"),
        (["Two boats."] + [f"{n} boats at night." for n in range(60)], 0.004, HELDOUT_TOO_SHORT),
    ],
)
def test_too_little_data_leaves_nothing_behind(
    tmp_path: Path, texts: list[str], fraction: float, words: str
) -> None:
    source = write_jsonl(tmp_path / "source.jsonl", texts)
    with pytest.raises(InputError, match=words):
        prepared(tmp_path / "out", source, f"data.heldout_fraction={fraction}")
    assert [path.name for path in tmp_path.iterdir()] == ["source.jsonl"]


def test_a_fault_late_in_the_data_leaves_nothing_behind(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "source.jsonl", documents(50))
    source.write_text(source.read_text() + "not json\n")
    with pytest.raises(InputError, match="line 51"):
        prepared(tmp_path / "out", source)
    assert [path.name for path in tmp_path.iterdir()] == ["source.jsonl"]


def test_an_occupied_folder_is_refused(tmp_path: Path, text_file: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(InputError, match="exists already"):
        prepared(tmp_path, text_file)
    assert (tmp_path / "mine.txt").read_text() == "precious"


def test_tails_of_shards_make_rows_with_separators_at_all_borders_of_documents(
    make_corpus: Callable[..., Corpus], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", 20_000)
    texts = documents(600)
    corpus = make_corpus(texts, "compute.workers=1")
    assert len([name for name in corpus.manifest["files"] if name.startswith("rows-")]) > 3
    left_out = corpus.manifest["tokens_left_out"]
    assert left_out < corpus.row_length
    assert corpus.rows * corpus.row_length == corpus.manifest["tokens"] - left_out
    encoded = [corpus.tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    pieces = {  # of documents are their tokens from anywhere to anywhere
        tuple(ids[begin:end])
        for ids in encoded
        for begin in range(len(ids) + 1)
        for end in range(begin, len(ids) + 1)
    }
    separators = 0
    for row in corpus.read(np.arange(corpus.rows)).tolist():  # rows of tails are among them
        ends = [-1, *(place for place, token in enumerate(row) if token == SEP), len(row)]
        assert all(tuple(row[a + 1 : b]) in pieces for a, b in itertools.pairwise(ends))
        separators += len(ends) - 2
    assert separators > 500


def test_any_number_of_workers_makes_the_same_bytes(tmp_path: Path, text_file: Path) -> None:
    """Also with code of one's own, and what is cut out of several documents."""
    (tmp_path / "own.py").write_text(
        "def keep(text):\n    return f'Home, News, Weather, Sport\\n{text}'\n"
    )
    made = []
    for workers in (1, 3):
        words = (
            f"compute.workers={workers}",
            "data.orders=[common-first,fragments]",
            f"data.clean.function={tmp_path / 'own.py'}:keep",
            "data.clean.repeated.min_characters=20",
        )
        made.append(prepared(tmp_path / f"{workers}", text_file, *words))
    assert made[0].sha256 == made[1].sha256
    assert not list(made[0].damaged())
    assert str(tmp_path) not in json.dumps(made[0].manifest)
    steps = {step["step"]: step.get("changed") for step in made[0].manifest["steps"]}
    assert (steps["function"], steps["repeated lines"]) == (600, 599)


SMALL_SHARDS = "from crammed.data import shards; shards.SHARD_CHARACTERS = 20_000"


def _words(out: Path, text: Path) -> list[str]:
    """A command that prepares several shards in one process."""
    given = ["--data", str(text), "--out", str(out)]
    return ["prepare", *TINY, "compute.workers=1", *given]


def _prepare_in_a_process(out: Path, text: Path, **environment: str) -> None:
    code = f"{SMALL_SHARDS}\nfrom crammed.cli.app import main; main()"
    done = python("-c", code, *_words(out, text), env=environment)
    assert done.returncode == 0, done.stderr


def test_the_hash_seed_does_not_matter(tmp_path: Path, text_file: Path) -> None:
    _prepare_in_a_process(tmp_path / "1", text_file, PYTHONHASHSEED="1")
    _prepare_in_a_process(tmp_path / "another", text_file)
    assert Corpus(tmp_path / "1").sha256 == Corpus(tmp_path / "another").sha256


def test_a_killed_preparation_resumes_and_gives_the_same(tmp_path: Path, text_file: Path) -> None:
    _prepare_in_a_process(tmp_path / "whole", text_file)
    work = tmp_path / ".out.preparing"
    for stage, function in (
        ("clean", "read.reading_job:clean_block"),
        ("pack", "driver:pack_shards"),
    ):
        place = dying(f"crammed.data.preparing.{function}", call=3, first=SMALL_SHARDS)
        killed = python(*place, *_words(tmp_path / "out", text_file))
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert not (tmp_path / "out").exists()
        assert list(work.rglob(f"00001.{stage}.json"))
        assert not list(work.rglob(f"00002.{stage}.json"))
    _prepare_in_a_process(tmp_path / "out", text_file)
    assert Corpus(tmp_path / "out").sha256 == Corpus(tmp_path / "whole").sha256
    assert not (tmp_path / ".out.preparing").exists()


def test_kept_work_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write_jsonl(tmp_path / "first.jsonl", documents(200))
    second = write_jsonl(tmp_path / "second.jsonl", documents(200, seed=1))
    cleaned = Cleaning(monkeypatch).sizes

    def make(name: str, *files: Path, work: Path | None = None) -> Corpus:
        return prepared(tmp_path / name, [*files], "compute.workers=1", work=work)

    make("one", first, work=tmp_path / "work")
    both = make("both", first, second, work=tmp_path / "work")
    assert cleaned == [200, 200]
    assert both.sha256 == make("afresh", first, second).sha256
    first.write_text(second.read_text())
    changed = make("changed", first, work=tmp_path / "work")
    assert changed.sha256 != Corpus(tmp_path / "one").sha256


@pytest.mark.parametrize(("work", "named"), [(None, "out"), ("work", "work")])
def test_two_processes_cannot_prepare_the_same_corpus(
    tmp_path: Path, text_file: Path, work: str | None, named: str
) -> None:
    folder = tmp_path / (work or ".out.preparing")
    folder.mkdir()
    given = folder if work else None
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(InputError, match=f"{tmp_path / named} is in use by another process"):
            prepared(tmp_path / "out", text_file, work=given)
    prepared(tmp_path / "out", text_file, work=given)


def test_damaged_files_are_skipped_and_named_if_configured(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "texts", 5, 60)
    bad = folder / "2.jsonl"
    bad.write_text(bad.read_text() + "not json\n")
    with pytest.raises(InputError, match=r"2\.jsonl, line 61"):
        prepared(tmp_path / "out", folder, "compute.workers=1")
    options = ["compute.workers=1", "data.unreadable=skip", "data.heldout_copies=keep"]
    config = tiny("crammed", *options, data={"sources": [str(folder)]})
    made = prepared(tmp_path / "out", folder, *options)
    (skipped,) = made.manifest["skipped"]
    assert (skipped["part"], skipped["records"]) == ("2.jsonl", 1)
    assert skipped["why"].startswith("1 damaged record left out, the first: texts/2.jsonl, line 61")
    assert skipped["why"] in " ".join(dict(describe_corpus(made))["skipped"])
    assert made.manifest["documents"] + made.manifest["heldout"]["documents"] == 300
    assert not changed_files(made, config.data)
    bad.write_text(bad.read_text().replace("not json\n", ""))
    assert changed_files(made, config.data) == ["2.jsonl"]
    for number in range(6):
        (folder / f"{number}.jsonl").write_text("not json")
    said = r"6 files are new or changed since .*out was prepared \(0.jsonl, .*, 4.jsonl, \.\.\.\):"
    with pytest.raises(InputError, match=said):
        unchanged(made, config.data)
    with pytest.raises(InputError, match="not valid JSON"):
        prepared(tmp_path / "none", folder, *options)


@pytest.mark.parametrize("shard", [shards.SHARD_CHARACTERS, 20_000])
def test_a_file_that_was_skipped_hides_no_other_that_is_called_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard: int
) -> None:
    """Whether it is read together with others, or is large."""
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", shard)
    good, bad = (tmp_path / "texts" / name / "train.jsonl.gz" for name in ("good", "bad"))
    write_jsonl(good, documents(300))
    write_jsonl(bad, documents(300, seed=1))
    mended, damaged = bad.read_bytes(), b"damaged" * 3000
    bad.write_bytes(damaged)
    options = ("compute.workers=1", "data.unreadable=skip")
    made = prepared(tmp_path / "out", tmp_path / "texts", *options)
    data = tiny("crammed", *options, data={"sources": [str(tmp_path / "texts")]}).data

    def changed() -> list[list[str]]:
        return [changed_files(made, data, hashed=hashed) for hashed in (False, True)]

    assert changed() == [[], []]
    bad.write_bytes(mended)
    assert changed() == [[bad.name]] * 2
    (skipped,) = made.manifest["skipped"]
    content = skipped.pop("content")  # which no corpus of an older version has
    assert changed() == [[], []]
    skipped["content"] = content
    bad.write_bytes(damaged)
    write_jsonl(good, documents(301))
    assert changed() == [[good.name]] * 2


def _from_sources(tmp_path: Path, *overrides: str, **sources: dict[str, Any]) -> Corpus:
    """A corpus of sources with 100 documents each, by name, each with its settings."""
    listed = []
    for number, (name, settings) in enumerate(sources.items()):
        path = write_jsonl(tmp_path / f"{name}.jsonl", documents(100, seed=number))
        listed.append({"path": str(path), "name": name, **settings})
    return prepared(tmp_path / "made", listed, *overrides)


def test_weights_repeat_documents_and_caps_end_sources(tmp_path: Path) -> None:
    made = _from_sources(
        tmp_path, plain={}, twice={"weight": 2.0}, half={"weight": 0.5}, cut={"max_characters": 999}
    )
    by_name = {source["name"]: source for source in made.manifest["sources"]}
    assert by_name["twice"]["documents"] > 1.8 * by_name["plain"]["documents"]
    assert 25 < by_name["half"]["documents"] < 75
    assert 1 <= by_name["cut"]["documents"] <= 8
    text = made.tokenizer.decode(tokens_of(made), skip_special_tokens=False)
    assert max(Counter(each.strip() for each in text.split("[SEP]")).values()) == 2


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_every_kind_of_tokenizer(make_corpus: Callable[..., Corpus], kind: str) -> None:
    corpus = make_corpus(documents(300), f"tokenizer.kind={kind}", "tokenizer.vocab_size=600")
    found = corpus.tokenizer.decode(tokens_of(corpus)).lower()
    assert "the quiet girl" in found or "a quiet girl" in found
    assert corpus.manifest["statistics"]["unknown_share"] == 0


def test_text_is_read_once_to_train_a_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its length is known, without copies of held-out text, and with each document counted once."""
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", 10_000)
    reading = Mock(side_effect=documents_to_pack)
    monkeypatch.setattr(driver, "documents_to_pack", reading)
    training = Mock(side_effect=train_from_texts)
    monkeypatch.setattr(driver, "train_from_texts", training)
    texts = documents(200)
    file = write_jsonl(tmp_path / "text.jsonl", [*texts, *(f"{text} Très bien." for text in texts)])
    words = ("tokenizer.kind=bpe", "tokenizer.vocab_size=400", "compute.workers=1")
    sources = [{"path": str(file), "weight": 2.5}]
    made = prepared(tmp_path / "made", sources, *words, work=tmp_path / "work")
    assert step_of(made, "copies of held-out text")["dropped"] > 0
    read = [call.args[0] for call in reading.call_args_list]
    assert len(read) == len({shard.out for shard in read}) > 1
    (_, characters, _) = training.call_args.args
    assert characters == sum(len(text) for shard in read for text in documents_to_pack(shard))


def test_a_tokenizer_can_be_supplied(tmp_path: Path, text_file: Path, corpus: Corpus) -> None:
    file = corpus.path / "tokenizer.json"
    words = (f"tokenizer.file={file}", "tokenizer.vocab_size=300")
    made = prepared(tmp_path / "made", text_file, *words)
    assert made.rows == corpus.rows
    assert np.array_equal(made.read(np.arange(made.rows)), corpus.read(np.arange(made.rows)))
    assert made.manifest["tokenizer"]["vocab_size"] == corpus.vocab_size
    assert str(file) not in (made.path / "manifest.json").read_text()


@pytest.mark.parametrize(
    ("override", "library", "extra"),
    [
        ("data.clean.near=0.8", "rensa", "dedup"),
        ("data.clean.near=0.8", "scipy", "dedup"),
        ("data.clean.substring=100", "pydivsufsort", "dedup"),
        ("tokenizer.kind=unigram", "sentencepiece", "unigram"),
        ("data.clean.languages=[en]", "py3langid.langid", "language"),
        ("data.clean.entities=any", "spacy", "entities"),
    ],
)
def test_a_missing_extra_is_named_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, override: str, library: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InputError, match=rf"crammed\[{extra}\]"):
        prepared(tmp_path / "out", tmp_path / "not-looked-for", override)
    assert not list(tmp_path.iterdir())


def test_characters_that_the_tokenizer_drops_are_reported(tmp_path: Path) -> None:
    hindi = [f"{n} यह एक छोटा वाक्य है और वह दूसरा है। में और नहीं हैं {n}।" for n in range(300)]
    source = write_jsonl(tmp_path / "hindi.jsonl", hindi)
    for stripped in (True, False):
        override = f"tokenizer.strip_accents={str(stripped).lower()}"
        _, said = prepared_and_told(tmp_path / str(stripped), source, override)
        assert ("tokenizer.strip_accents=false keeps them" in said) == stripped


def test_what_is_dropped_of_a_later_source_is_reported(tmp_path: Path) -> None:
    english = write_jsonl(tmp_path / "english.jsonl", sentences(2_600))
    hindi = write_jsonl(tmp_path / "hindi.jsonl", (f"{n} यह एक छोटा वाक्य है।" for n in range(300)))
    words = ["data.heldout_fraction=0.45", "data.heldout_copies=keep", "tokenizer.ascii_only=true"]
    made, said = prepared_and_told(tmp_path / "out", [english, hindi], *words)
    sources = Counter(source for _, source in heldout_documents(made.heldout))
    assert list(sources) == ["english.jsonl", "hindi.jsonl"]
    assert sources["english.jsonl"] > 1_000
    assert "tokenizer.ascii_only=false keep" in said


def ideographs(count: int) -> list[str]:
    draw = random.Random(1)
    return ["".join(draw.choices("的一是在人有我他这中", k=200)) for _ in range(count)]


def test_the_papers_recipe_packs_ideographs_with_the_settings_that_the_page_names(
    tmp_path: Path,
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "languages.md").read_text("utf-8")
    (row,) = (line for line in page.splitlines() if "with the paper's recipes | " in line)
    words = row.split("`")[1].split()
    source = write_jsonl(tmp_path / "source.jsonl", ideographs(200))
    config = tiny("crammed-2022", *words, data={"sources": [str(source)]})
    made = prepare(config.data, config.tokenizer, tmp_path / "out", SILENT)
    assert made.manifest["documents"] + made.manifest["heldout"]["documents"] == 200
    assert made.manifest["statistics"]["unknown_share"] == 0.0


@pytest.mark.parametrize(("most", "told"), [(0.8, True), (1.5, False)])
def test_text_that_tokens_per_character_drop_is_reported(
    tmp_path: Path, most: float, told: bool
) -> None:
    source = write_jsonl(tmp_path / "source.jsonl", [*documents(200), *ideographs(50)])
    word = f"data.clean.max_tokens_per_character={most}"
    _, said = prepared_and_told(tmp_path / "out", source, word)
    assert ("max_tokens_per_character dropped" in said) == told


def test_ignored_files_are_reported(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    (folder / "below").mkdir(parents=True)
    write_jsonl(folder / "a.jsonl", documents(200))
    for name in ("b.md", "below/c.md", "d.html", ".hidden", "e.json"):
        (folder / name).write_text("[]")
    _, said = prepared_and_told(tmp_path / "out", folder)
    words = next(line for line in said.splitlines() if "other formats" in line)
    kinds, _, hint = words.partition("other formats: ")[2].partition("; ")
    assert sorted(kinds.split(", ")) == ["1 .html", "1 .json", "2 .md"]
    assert hint.endswith("to read them, name them as FOLDER/**/*.md or FOLDER/**/*.html")


@pytest.mark.parametrize(("suffix", "archived"), [(".zip", zipped), (".tar", tarred)])
def test_files_that_are_ignored_in_archives_are_reported_with_the_others(
    tmp_path: Path, suffix: str, archived: Callable[[dict[str, bytes]], bytes]
) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.pdf").write_bytes(b"%PDF")
    content = {f"{n}.txt": text.encode() for n, text in enumerate(documents(200))}
    content |= {"b.pdf": b"%PDF", "below/c.pdf": b"%PDF", "program": b"\0", ".hidden.pdf": b"%PDF"}
    (folder / f"a{suffix}").write_bytes(archived(content))
    for out in ("one", "again"):  # the second time, nothing is read
        _, said = prepared_and_told(tmp_path / out, folder, work=tmp_path / "work")
        lines = [line for line in said.splitlines() if "other formats" in line]
        assert [line.partition("formats: ")[2] for line in lines] == [
            "1 .pdf",
            "3 .pdf, 1 without a suffix",
        ]


def test_a_ray_cluster_makes_the_same_bytes(tmp_path: Path, text_file: Path) -> None:
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=1)
        cluster.connect()
        made = prepared(tmp_path / "ray", text_file, "compute.engine=ray")
    finally:
        ray.shutdown()
        cluster.shutdown()
    here = prepared(tmp_path / "here", text_file)
    assert made.sha256 == here.sha256
