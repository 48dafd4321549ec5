"""Prepares the corpora of a study from text, each distinct one once, into ``OUT/corpora``.

``base`` is the corpus of the study's base; the others are named by a hash of their settings. All of
them hold out the same documents, and none trains on them. They share cleaned text: for arms that
differ only in the tokenizer, in rows or in exact duplicates it is not cleaned again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, get_args

from crammed.budget import Budget
from crammed.config import CleanConfig, DataConfig, Ordering, RunConfig, Section, TokenizerConfig
from crammed.config.kinds import flat, overlaid
from crammed.config.yamlfile import load_yaml, validated
from crammed.data.corpus import Corpus
from crammed.data.preparing.driver import prepare
from crammed.data.preparing.extras import require_extras
from crammed.data.preparing.manifest import settings_json, unchanged
from crammed.data.preparing.read.source import check_text
from crammed.data.preparing.workfolder import remove_left_overs
from crammed.errors import InputError
from crammed.files.hashes import json_hash
from crammed.rules.choosing import Asked
from crammed.rules.recipe import ask, parse_overrides
from crammed.study.running.folder import refuse_foreign
from crammed.study.spec.arms import Study, merged
from crammed.study.spec.corpora import Corpora, Key, is_of_corpus, key_of, sets_order
from crammed.study.spec.small import typed_keys
from crammed.terminal.progress import Progress

FOLDER = "corpora"
SOURCES = "data.sources="
VOCABULARY = "tokenizer.vocab_size"


class _Settings(Section):
    data: DataConfig
    tokenizer: TokenizerConfig

    def changed(self, words: Sequence[str]) -> _Settings:
        """These settings with what the words of an arm say about its corpus.

        The order in which the arm reads its rows is added to those stored. Nothing else that its
        recipe says about data counts: arms with other recipes are compared on the same text.
        """
        own = parse_overrides([word for word in words if is_of_corpus(word)])
        values = overlaid(self.model_dump(mode="json"), own, RunConfig)
        made = validated(_Settings, values)
        given = flat(parse_overrides([word for word in words if sets_order(word)]))
        order = given.get("order.by") or _order_of(words[0])
        if order not in get_args(Ordering) or order in made.data.orders:
            return made
        values["data"]["orders"] = [*made.data.orders, order]
        return validated(_Settings, values)

    def with_vocabulary(self, size: int) -> _Settings:
        return self.model_copy(
            update={"tokenizer": self.tokenizer.model_copy(update={"vocab_size": size})}
        )

    @property
    def name(self) -> str:
        return json_hash(self.model_dump(mode="json"))[:10]


@cache
def _order_of(recipe: str) -> str:
    return ask(recipe).config.order.by


class PlannedCorpora:
    """What is known about a study's corpora before they are prepared, so that arms can be checked.

    Args:
        data: sources as ``data.sources`` takes them. In the words of an arm, a number in
            ``data.sources`` stands for one of them, counted from 1.

    Attributes:
        asked: what the study's base asks for.
        base: the settings of the base's corpus; if the vocabulary is open, its size means nothing.
        arms: an arm's words with all sources written out, by `key_of` the words.
        names: by the same key, the first arm with that corpus; empty for the base.

    Raises:
        InputError: the base, or what an arm says about its corpus, is not valid.
    """

    def __init__(self, study: Study, data: Sequence[str], budget: Budget) -> None:
        recipe, *overrides = base = merged(study.base)
        if any(key.startswith("data.sources") for key in typed_keys(overrides)):
            raise InputError(
                "data.sources is set twice, by --data and by the base of the study: leave one out"
            )
        fixed = {"budget": {"limit": budget}, "data": {"sources": list(data)}}
        self.asked = ask(recipe, overrides, fixed, fit=study.small is not None)
        config = self.asked.config
        self.base = _Settings(data=config.data, tokenizer=config.tokenizer).changed(base)
        self.arms: dict[Key, list[str]] = {key_of(base): base}
        self.names: dict[Key, str] = {key_of(base): ""}
        for arm in study.arms:
            words = study.words(arm)
            self.names.setdefault(key_of(words), arm)
            with _of_arm(arm):
                self.arms[key_of(words)] = written = _written_out(words, data)
                self.base.changed(written)

    @property
    def open(self) -> bool:
        """Whether the size of the base's vocabulary follows from the budget."""
        return VOCABULARY in self.asked.open

    def fixed(self, words: Sequence[str], budget: Budget) -> dict[str, Any]:
        """As `Corpora.fixed`, without a hash, and without the vocabulary size if it is open."""
        written = self.arms[key_of(words)]
        values = self.base.changed(written).model_dump(mode="json")
        if self.open and not any(word.startswith(VOCABULARY) for word in written):
            del values["tokenizer"]["vocab_size"]
        return {**values, "budget": {"limit": budget}}

    def rows(self, sha256: str | None) -> None:
        """None: not known yet."""

    def vocabulary(self, sha256: str | None) -> None:
        """None: not known yet."""

    def check_text(self) -> None:
        """Read the first documents of every arm, so that a wrong field name is found at once.

        Raises:
            InputError: text is missing, or cannot be read; the arm is named.
        """
        checked = []
        for key, words in self.arms.items():
            data = self.base.changed(words).data
            text = (data.sources, data.documents, data.text_field)
            if text not in checked:
                checked.append(text)
                with _of_arm(self.names[key]):
                    check_text(data)

    def differences(self, corpus: Corpus) -> list[str]:
        """``KEY: VALUE there, VALUE here`` where the base's settings differ from a corpus.

        A corpus that is older than a setting was made with its default.
        """
        names = [each["name"] for each in corpus.manifest["sources"]]
        sources = self.base.data.sources
        if len(names) != len(sources):
            return [f"data.sources: {len(names)} there, {len(sources)} here"]
        for name, source in zip(names, sources, strict=True):  # files are compared later
            own = source.path.removeprefix("hub:")
            if own != source.path and name.partition(" (")[0] != own:
                return [f"data.sources: {name} there, {own} here"]
        # Options that came later are left out while they have their default.
        usual = {
            f"data.clean.{key}": each.default for key, each in CleanConfig.model_fields.items()
        }
        here = usual | _by_key(settings_json(self.base.data, self.base.tokenizer))
        there = usual | _by_key(settings_json(DataConfig(), TokenizerConfig()))
        there |= _by_key(corpus.manifest)
        decided = self.open or self.base.tokenizer.file is not None
        if "format" not in corpus.manifest["data"] and here["data.documents"] == "auto":
            del here["data.documents"]  # the default was another, and was written down
        return [
            f"{key}: {there[key]} there, {value} here"
            for key, value in here.items()
            if there[key] != value and not (decided and key == VOCABULARY)
        ]


def _by_key(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a manifest keeps of the settings, by dotted keys."""
    data = dict(settings["data"])
    sections = {"data.clean": data.pop("clean"), "data": data, "tokenizer": settings["tokenizer"]}
    return {f"{name}.{key}": value for name, own in sections.items() for key, value in own.items()}


def planned_corpora(study: Study, data: Sequence[str], budget: Budget, out: Path) -> PlannedCorpora:
    """The corpora of the study in a folder that is new or holds this study.

    Raises:
        InputError: as `PlannedCorpora`, or text is missing or cannot be read, or the folder is not
            a study's, or its corpus was prepared with other settings.
    """
    refuse_foreign(out)
    planned, base = PlannedCorpora(study, data, budget), out / FOLDER / "base"
    if not (base / "manifest.json").exists():
        planned.check_text()
        return planned
    if different := planned.differences(Corpus(base)):
        raise InputError(f"{out} holds another study ({different[0]}): choose another --out")
    return planned


def prepare_corpora(
    planned: PlannedCorpora,
    out: Path,
    choose: Callable[[Asked, float], TokenizerConfig],
    progress: Progress,
) -> Corpora:
    """Prepare the corpora that do not exist yet, and open all of them.

    Args:
        choose: chooses the tokenizer for about so many rows of text, if its vocabulary is open.

    Raises:
        InputError: an extra is missing; text is missing or unsuitable, or has changed.
    """
    folder, compute = out / FOLDER, planned.asked.config.compute
    work, settings = folder / ".work", planned.base
    wanted = {key: settings.changed(words) for key, words in planned.arms.items()}
    for key, how in wanted.items():
        with _of_arm(planned.names[key]):
            require_extras(how.data, how.tokenizer)
    keep = work if len({how.name for how in wanted.values()}) > 1 else None

    def make(place: Path, how: _Settings, base: Corpus | None) -> Corpus:
        if (place / "manifest.json").exists():
            remove_left_overs(place)
            return unchanged(Corpus(place), how.data, hashed=False)
        progress.line(f"corpus  {place}")
        row, opens = settings.data.row_length, base is None and planned.open
        vocabulary = (lambda tokens: choose(planned.asked, tokens / row)) if opens else None
        return prepare(
            how.data, how.tokenizer, place, progress, compute, keep, vocabulary, heldout=base
        )

    base = make(folder / "base", settings, None)
    settled = settings.with_vocabulary(base.manifest["tokenizer"]["vocab_size"])
    made, of_arms = {settled.name: base}, dict[Key, Corpus]()
    for key, words in planned.arms.items():
        how = settled.changed(words)
        if how.name not in made:
            with _of_arm(planned.names[key]):
                made[how.name] = make(folder / how.name, how, base)
        of_arms[key] = made[how.name]
    shutil.rmtree(work, ignore_errors=True)
    return Corpora(base, of_arms)


@contextmanager
def _of_arm(arm: str) -> Iterator[None]:
    """Name the arm in errors; the name of the base is empty."""
    try:
        yield
    except InputError as error:
        if not arm:
            raise
        raise error.within(f"arm {arm}") from error


def _written_out(words: Sequence[str], data: Sequence[str]) -> list[str]:
    """The words with each number in ``data.sources`` replaced by the source it stands for."""

    def source(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {**value, "path": source(value.get("path"))}
        if type(value) is not int:
            return value
        if not 1 <= value <= len(data):
            raise InputError(
                f"data.sources has {value}, and --data names {len(data)}: count from 1"
            )
        return data[value - 1]

    written = []
    for word in words:
        if word.startswith("data=") and "data.sources" in typed_keys([word]):
            raise InputError("write the sources as data.sources=[...], outside of data={...}")
        if word.startswith(SOURCES):
            values = load_yaml(word.removeprefix(SOURCES))
            listed = [source(each) for each in values] if isinstance(values, list) else values
            word = f"{SOURCES}{json.dumps(listed)}"
        written.append(word)
    return written
