"""A filter of the user's own: a Python function that the configuration names."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from crammed.cli import corpora, training
from crammed.config import CleanConfig
from crammed.data.corpus import Corpus
from crammed.data.preparing.cleaning.own import own_filter
from crammed.data.preparing.extension import extend
from crammed.data.show import describe_corpus, dropped_samples
from crammed.errors import InputError
from crammed.terminal.progress import SILENT
from support.corpora import prepared, step_of
from support.reading import Cleaning
from support.text import documents, tiny, write_jsonl

KEEP = '''
def keep(text):
    """Drop foxes, and shorten what has a boat."""
    if "fox" in text:
        return False
    return text.replace("two boats", "a boat") if "boats" in text else True
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    file = tmp_path / "code" / "mine.py"
    file.write_text(KEEP)
    return file


def made_with(out: Path, function: str | None, *words: str, **options: Any) -> Corpus:
    text = out.with_name("text.jsonl")
    if not text.exists():
        write_jsonl(text, documents(300))
    named = () if function is None else (f"data.clean.function={function}",)
    return prepared(out, text, *named, *words, **options)


def test_it_keeps_changes_and_drops(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    texts = documents(300)
    left = [each for each in texts if "fox" not in each]
    boats = sum("boats" in each for each in left)
    made = made_with(tmp_path / "out", "mine.py:keep")
    step = step_of(made, "function")
    assert step["dropped"] == 300 - len(left)
    assert (step["kept"], step["changed"]) == (len(left), boats)
    assert f"{boats} documents changed" in " ".join(dict(describe_corpus(made))["dropped"])
    samples = {each["step"]: each["text"] for each in dropped_samples(made)}
    assert "fox" in samples["function"]
    assert "a boat" in samples["function, changed"]
    digest = hashlib.sha256(KEEP.encode()).hexdigest()
    assert made.manifest["data"]["clean"]["function"] == f"mine.py:keep@{digest}"
    own = tmp_path / "own"
    write_jsonl(own / "text.jsonl", [each.replace("two boats", "a boat") for each in left])
    assert (made_with(own / "out", None).path / "rows-00000.bin").read_bytes() == (
        made.path / "rows-00000.bin"
    ).read_bytes()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def keep(text):\n    return len(text)\n", "keep in {file} returned int: return the text"),
        ("def keep(text):\n    return [text]\n", "keep in {file} returned list: return the text"),
        ("\ndef keep(text):\n    return 1 / 0\n", "{file}, line 3: ZeroDivisionError: division"),
        ("def keep(text):\n    return help\nimport nothing_like_it\n", "{file}, line 3: ModuleNot"),
        ("def keep(text:\n", "{file}, line 1: SyntaxError: "),
        ("raise SystemExit\n", "{file}, line 1: SystemExit"),
        ("kept = 1\n", "{file} has no function keep"),
        ("keep = 1\n", "{file} has no function keep"),
        ("def keep(text):\n    raise ValueError('a\\nb')\n", "{file}, line 2: ValueError: a"),
    ],
)
def test_what_is_wrong_with_it_is_one_line(file: Path, code: str, said: str) -> None:
    file.write_text(code)
    with pytest.raises(InputError) as caught:
        own_filter(f"{file}:keep")("some text")
    assert str(caught.value).startswith(f"data.clean.function: {said.format(file=file)}")
    assert "\n" not in str(caught.value)


def test_what_it_may_return(file: Path) -> None:
    file.write_text(
        "from dataclasses import dataclass\n"
        "@dataclass\nclass Answers:\n    by_text: dict\n"
        "answers = Answers({'a': True, 'b': False, 'c': None, 'd': 'e', 'f': ' \\n', 'g': ''})\n"
        "def keep(text):\n    return answers.by_text[text]\n"
    )
    keep = own_filter(f"{file}:keep")
    assert list(map(keep, "abcdfg")) == ["a", None, None, "e", None, None]


def test_a_file_that_is_missing_or_changes_is_refused(tmp_path: Path, file: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*none\.py \(No such file"):
        made_with(tmp_path / "out", f"{tmp_path / 'none.py'}:keep")
    with pytest.raises(InputError, match=r"mine\.py changed while text was cleaned: repeat"):
        own_filter(f"{file}:keep@{'0' * 64}")
    with pytest.raises(ValueError, match=r"name it as FILE\.py:FUNCTION, such as my_filters"):
        CleanConfig(function=str(file))


def test_a_changed_function_cleans_again(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaned = Cleaning(monkeypatch).names
    work = tmp_path / "work"
    first = made_with(tmp_path / "one", f"{file}:keep", work=work)
    made_with(tmp_path / "two", f"{file}:keep", work=work)
    assert len(cleaned) == 1
    file.write_text(KEEP.replace("fox", "sailor"))
    other = made_with(tmp_path / "three", f"{file}:keep", work=work)
    assert len(cleaned) == 2
    assert other.manifest["documents"] != first.manifest["documents"]


def test_a_corpus_is_extended_with_the_same_function_alone(tmp_path: Path, file: Path) -> None:
    base = made_with(tmp_path / "base", f"{file}:keep")
    more = write_jsonl(tmp_path / "more" / "text.jsonl", documents(100, seed=1))

    def extended(*words: str) -> Corpus:
        config = tiny("crammed", *words, data={"sources": [str(more)]})
        return extend(base, config.data, tmp_path / "larger", SILENT)

    said = r"base was cleaned with mine\.py:keep, .* type data\.clean\.function=FOLDER/mine"
    with pytest.raises(InputError, match=said):
        extended()
    other = file.with_name("other.py")
    other.write_text(KEEP.replace("fox", "sailor"))
    with pytest.raises(InputError, match=said):
        extended(f"data.clean.function={other}:keep")
    made = extended(f"data.clean.function={file}:keep")
    assert made.manifest["data"] == base.manifest["data"]
    both = [*documents(300), *documents(100, seed=1)]
    assert step_of(made, "function")["dropped"] == sum("fox" in text for text in both)
    plain = made_with(tmp_path / "plain", None)
    with pytest.raises(InputError, match="plain was cleaned without it; leave it out"):
        corpora.prepare(
            [f"data.clean.function={file}:keep"],
            [str(more)],
            out=tmp_path / "never",
            extend=plain.path,
        )


# ---- folders of strangers


def planted(file: Path) -> Path:
    """A file whose code leaves a trace when it is run; returns where."""
    trace = file.with_name("trace")
    file.write_text(f"open({str(trace)!r}, 'w').close()\n{KEEP}")
    return trace


def test_a_strangers_corpus_runs_no_code(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    base = made_with(tmp_path / "base", None)
    trace = planted(file)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    for named in (f"mine.py:keep@{digest}", f"{file}:keep", "mine.py:keep"):
        manifest = json.loads((base.path / "manifest.json").read_text())
        manifest["data"]["clean"]["function"] = named
        (base.path / "manifest.json").write_text(json.dumps(manifest))
        more = [str(tmp_path / "text.jsonl")]
        with pytest.raises(InputError, match=r"was cleaned with .*mine\.py:keep"):
            corpora.prepare([], more, out=tmp_path / "out", extend=base.path)
    manifest["data"]["clean"]["function"] = "../../x"
    (base.path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=r"base, data: clean\.function: name it as FILE\.py"):
        corpora.prepare([], more, out=tmp_path / "out", extend=base.path)
    assert not trace.exists()


@pytest.mark.parametrize("words", [[], ["data.row_length=32"]])
def test_a_strangers_run_runs_no_code(
    tmp_path: Path, file: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the words are such that today's recipe does not accept them."""
    trace = planted(file)
    text = write_jsonl(tmp_path / "text.jsonl", documents(300))
    run = tmp_path / "run"
    run.mkdir()
    config = tiny(
        "crammed",
        f"data.clean.function={file}:keep",
        "data.row_length=32",
        data={"sources": [str(text)]},
        budget={"limit": "2updates"},
    )
    (run / "config.json").write_text(config.model_dump_json())
    if words:
        monkeypatch.setattr("crammed.runs.resuming.ask", _refusing)
    with pytest.raises(InputError, match=r"run was begun with the function .* if you trust it, ty"):
        training.run(words, out=run)
    assert not trace.exists()


def _refusing(*_: Any, **__: Any) -> Any:
    raise InputError("today's recipe does not accept these words")


def test_a_run_of_ones_own_goes_on_with_the_function_typed(tmp_path: Path, file: Path) -> None:
    from crammed.runs.resuming import asked_in

    run = tmp_path / "run"
    run.mkdir()
    word = f"data.clean.function={file}:keep"
    (run / "config.json").write_text(tiny("crammed", word).model_dump_json())
    assert asked_in(run, None, [word], {}).config.data.clean.function == f"{file}:keep"
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"extends: crammed\ndata: {{clean: {{function: '{file}:keep'}}}}\n")
    (run / "config.json").write_text(tiny(str(recipe)).model_dump_json())
    assert asked_in(run, str(recipe), [], {}).config.data.clean.function == f"{file}:keep"
    with pytest.raises(InputError, match="was begun with the function"):
        asked_in(run, None, [], {})
