"""A task as data: its columns, its labels, its splits and its metric.

A suite is a YAML file of tasks; the built-in ones (``suites/``) and the user's own have the same
format. Wherever a list of words is expected, a single word stands for a list of one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from string import Formatter
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from crammed.config import PositiveInt, Section
from crammed.config.yamlfile import names_in, read_section, shown
from crammed.errors import InputError
from crammed.hints import no_such
from crammed.sentences import is_mark
from crammed.tasks.labels import name_of

TaskKind = Literal[
    "classification", "multi-label", "regression", "tokens", "choice", "minimal-pairs"
]
PAIRS: TaskKind = "minimal-pairs"
"""The kind that is scored without fine-tuning."""
Metric = Literal[
    "accuracy",
    "f1",
    "macro-f1",
    "micro-f1",
    "matthews",
    "pearson",
    "spearman",
    "span-f1",
    "group-f1",
    "group-exact",
]
_OF_CLASSES: tuple[Metric, ...] = ("accuracy", "macro-f1", "micro-f1")
OF_ONE: tuple[Metric, ...] = ("f1", "group-f1")
"""Metrics of the positive class alone."""
OF_TWO: tuple[Metric, ...] = (*OF_ONE, "group-exact")
_METRICS: dict[TaskKind, tuple[Metric, ...]] = {
    "classification": (*_OF_CLASSES, "matthews", *OF_TWO),
    "multi-label": _OF_CLASSES,
    "regression": ("pearson", "spearman"),
    "tokens": (*_OF_CLASSES, "matthews", "span-f1"),
    "choice": _OF_CLASSES,
    "minimal-pairs": ("accuracy",),
}
_OF_PAIRS = {"text": ("sentence_good", "sentence_bad"), "metric": "accuracy"}
"""What a task of kind minimal-pairs need not say."""

MOST_LABELS = 100_000
WITHOUT_FINETUNING = ("blimp", "heldout")
"""Suites that score a masked language model as it was pretrained."""


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _named(value: Any) -> Any:
    """Names unchanged; ``3`` gives the names ``0``, ``1``, ``2``."""
    if value is None:
        return ()
    if type(value) is int:
        if value > MOST_LABELS:
            raise ValueError(f"{value} is more than {MOST_LABELS:,} labels")
        # 0 gives one name, which is refused; an empty list would be ignored
        return tuple(map(str, range(max(1, value))))
    if isinstance(value, list):
        # As the data's own are: 2.0 is the class 2.
        return tuple(name_of(name) if isinstance(name, str | int) else name for name in value)
    return _listed(value)


def _label(value: Any) -> Any:
    return value if value is None else name_of(value)


Strings = Annotated[tuple[str, ...], BeforeValidator(_listed), Field(strict=False)]
Metrics = Annotated[tuple[Metric, ...], BeforeValidator(_listed), Field(strict=False)]
Labels = Annotated[tuple[str, ...], BeforeValidator(_named), Field(strict=False)]
Range = Annotated[tuple[float, float], Field(strict=False)]


class SplitSpec(Section):
    """Where to find rows; null values default to the task's. A single word is its `split`."""

    split: str = "validation"
    folder: str | None = None
    text: Strings | None = None

    @model_validator(mode="before")
    @classmethod
    def _words_are_splits(cls, value: Any) -> Any:
        return {"split": value} if isinstance(value, str) else value

    @property
    def key(self) -> str:
        """Its key in `Task.rows`."""
        return f"{self.folder}/{self.split}" if self.folder else self.split


class Scored(SplitSpec):
    """One of a task's numbers: the score on one labelled split.

    MNLI gives two, and SuperGLUE's RTE is also scored on two diagnostic sets, which have their own
    columns and metrics.
    """

    metric: Metrics | None = None


class Task(Section):
    """One fine-tuning task. `crammed.tasks.read` turns its records into rows."""

    name: str
    """Its key in the suite."""
    kind: TaskKind = "classification"
    text: Annotated[Strings, Field(min_length=1, max_length=2)]
    """One or two columns, or templates of columns such as ``{word}: {sentence1}``. For kind tokens,
    the column of the words: a list, or text with spaces between the words. For kind minimal-pairs,
    the acceptable sentence and the other one."""
    choices: Strings = ()
    """For kind choice: a template for each answer, or the column that holds the list of answers."""
    choice_text: str = "{choice}"
    """For kind choice: template of the second text, in which ``{choice}`` stands for an answer."""
    label: Annotated[Strings, Field(min_length=1)] = ("label",)
    """The column of the label; for multi-label, of a list, or a column of 0/1 for each label."""
    labels: Labels = ()
    """Names of the classes in the order of their numbers, or how many there are. If empty, they are
    the labels in the training split, sorted."""
    positive: Annotated[str | None, BeforeValidator(_label)] = None
    """For metric f1 or group-f1: name of the class whose F1 it is; by default the second one."""
    metric: Annotated[Metrics, Field(min_length=1)]
    """The score is the mean of these."""
    also: Metrics = ()
    """Metrics to report besides the score."""
    group: str | None = None
    """Template of the key that joins rows, such as MultiRC's answers to one question. For kind
    minimal-pairs, the score is the mean over groups, as over BLiMP's paradigms."""
    folder: Strings = ()
    """Folder of its splits in the suite's data, and its configuration on the hub; the first that
    exists, if there are several. By default its name."""
    train: str = "train"
    most_rows: PositiveInt | None = None
    """Training rows to use at most: if there are more, a sample, always the same."""
    folds: Annotated[int, Field(ge=2, le=100)] | None = None
    """Score the training rows by cross-validation in this many parts; no other split is scored."""
    scored: dict[str, Scored] = Field(default_factory=dict)
    """Name of a number -> the split that it is the score on; see `numbers`."""
    test: dict[str, SplitSpec] = Field(default_factory=dict)
    """Name of a leaderboard's file -> the unlabelled rows whose predictions it takes; not for kind
    tokens."""
    rows: dict[str, PositiveInt] = Field(default_factory=dict)
    """Official row count of each split (``folder/split`` for a split in another folder)."""

    @property
    def numbers(self) -> dict[str, Scored]:
        """The task's scores by name; without `scored`, only the score on its validation split, or
        with `folds` on its training split."""
        return self.scored or {self.name: Scored(split=self.train) if self.folds else Scored()}

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Every metric that the task's scores need, including those of `also`."""
        own = [metric for scored in self.scored.values() for metric in scored.metric or ()]
        return tuple(dict.fromkeys((*self.metric, *self.also, *own)))

    @property
    def folders(self) -> tuple[str, ...]:
        """`folder`, or the name of the task."""
        return self.folder or (self.name,)

    @property
    def has_pairs(self) -> bool:
        """Whether each row has two texts and one label, or several, of both."""
        return len(self.text) == 2 and self.kind not in ("tokens", "choice", PAIRS)

    @model_validator(mode="before")
    @classmethod
    def _of_its_kind(cls, values: Any) -> Any:
        pairs = isinstance(values, dict) and values.get("kind") == PAIRS
        return {**_OF_PAIRS, **values} if pairs else values

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Task:
        problems = list(self._problems())
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _problems(self) -> Iterable[str]:
        kind = self.kind
        if kind in ("tokens", "choice") and len(self.text) != 1:
            yield f"kind {kind} takes one column in text, not {len(self.text)}"
        if kind == PAIRS:
            if len(self.text) != 2:
                yield f"kind {kind} takes the columns of two sentences in text"
            if self.folds or self.test or self.most_rows:
                yield f"kind {kind} is not fine-tuned: leave out folds, test and most_rows"
        if kind == "tokens" and "{" in self.text[0]:
            yield "kind tokens takes a column in text, not a template"
        if self.folds and (self.scored or self.test):
            yield "folds scores the training split: leave out scored and test"
        if kind == "tokens" and self.test:
            yield "kind tokens has no test: a submission has one answer for each row"
        if (kind == "choice") != bool(self.choices):
            yield f"kind {kind} {'needs' if kind == 'choice' else 'has no'} choices"
        if len(self.choices) == 1 and "{" in self.choices[0]:
            yield "choices needs a template for each answer, or the column that holds their list"
        if "{choice}" not in self.choice_text:
            yield "choice_text must contain {choice}"
        if kind != "multi-label" and len(self.label) > 1:
            yield f"kind {kind} takes one column in label; kind multi-label takes several"
        if len(set(self.label)) < len(self.label):
            yield "label names a column twice: leave one out"
        if len(self.label) > 1 and self.labels and len(self.labels) != len(self.label):
            yield f"{len(self.labels)} labels for {len(self.label)} columns of 0/1"
        if kind == "regression" and self.labels:
            yield "kind regression has no labels"
        if len(set(self.labels)) < len(self.labels) or len(self.labels) == 1:
            yield "labels must be two or more different names, or how many there are"
        for where in (*self.scored.values(), *self.test.values()):
            if where.text is not None and len(where.text) != len(self.text):
                yield f"{where.key} has {len(where.text)} texts, but the task {len(self.text)}"
        if self.positive is not None and not set(OF_ONE) & set(self.metrics):
            yield f"positive is for metric {' or '.join(OF_ONE)}, not {', '.join(self.metrics)}"
        for metric in self.metrics:
            if metric not in _METRICS[kind]:
                yield f"metric {metric} is not for kind {kind}: {', '.join(_METRICS[kind])}"
            if metric in OF_TWO and len(self.labels) > 2:
                yield f"metric {metric} takes two labels, not {len(self.labels)}: use macro-f1"
            if metric.startswith("group-") and self.group is None:
                yield f"metric {metric} needs group, the template of the key that joins rows"

    @field_validator("text", "choices", "choice_text", "group")
    @classmethod
    def _templates(cls, value: Any) -> Any:
        for template in _listed(value) or ():
            pieces(template)
        return value


def pieces(template: str) -> list[tuple[str, str | None]]:
    """The pieces of a template: literal text, and the column that follows it, or None.

    A template without braces is the name of a column.

    Raises:
        ValueError: the template cannot be filled in.
    """
    if "{" not in template and "}" not in template:
        return [("", template)]
    try:
        parsed = list(Formatter().parse(template))
    except ValueError as error:
        raise ValueError(
            f"template {template!r}: {error}; write a literal brace as {{{{"
        ) from error
    fields = [field for _, field, _, _ in parsed if field is not None]
    if not fields or not all(fields) or any(spec or kind for _, _, spec, kind in parsed):
        raise ValueError(f"template {template!r} must name columns, as in {{question}}")
    return [(literal, field) for literal, field, _, _ in parsed]


class OnHub(Section):
    """Where a folder of tasks is on the Hugging Face hub."""

    repository: str
    config: str | None = None
    converted: bool = False
    """Read the hub's copy in Parquet: the original is a script, which `datasets` no longer runs."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Column of the task -> what the data set calls it."""


class Suite(Section):
    """Tasks that belong together, and means over their numbers."""

    name: str
    hub: str | dict[str, OnHub] | None = None
    """Data set on the Hugging Face hub with a configuration for each folder, or where each is."""
    converted: bool = False
    """As in `OnHub`, if all folders are in one data set."""
    tasks: Annotated[dict[str, Task], Field(min_length=1)]
    means: dict[str, Annotated[Strings, Field(min_length=1)]] = Field(default_factory=dict)
    """Name of a mean -> the numbers that it is the mean of."""
    left_out: Strings = ()
    """Files that the leaderboard expects for tasks that this suite lacks."""
    between: dict[str, Range] = Field(default_factory=dict)
    """Name of a leaderboard's file -> the smallest and largest value that it accepts."""

    @field_validator("tasks", mode="before")
    @classmethod
    def _keys_are_names(cls, tasks: Any) -> Any:
        if not isinstance(tasks, dict):
            return tasks
        if odd := [json.dumps(key, default=str) for key in tasks if not isinstance(key, str)]:
            raise ValueError(f"the task {odd[0]} must be text: write '{odd[0]}':")
        return {
            key: {"name": key, **task} if isinstance(task, dict) else task
            for key, task in tasks.items()
        }

    @model_validator(mode="after")
    def _names_fit(self) -> Suite:
        numbers = [number for task in self.tasks.values() for number in task.numbers]
        files = [file for task in self.tasks.values() for file in task.test]
        for key, task in self.tasks.items():
            if task.name != key:
                raise ValueError(f"tasks.{key}.name: leave it out, the key is the name")
            specs = (*task.scored.values(), *task.test.values())
            for split in (task.train, *(spec.split for spec in specs)):
                if not split or "/" in split or split == "..":
                    raise ValueError(f"{split!r} is not the name of a split")
        for name in (self.name, *self.tasks, *numbers, *files):
            if not re.fullmatch(r"\w[\w.+-]*", "".join(c for c in name if not is_mark(c))):
                raise ValueError(f"{name!r} names files: use only letters, digits, and - _ + .")
            if len(name.encode()) > 200:
                raise ValueError(f"{shown(name)} names files: choose a name of at most 200 bytes")
        if self.name in WITHOUT_FINETUNING:
            raise ValueError(f"{self.name} is a built-in name: rename the suite's file")
        for kind, names in (("number", numbers), ("test file", files)):
            double = {name for name in names if names.count(name) > 1}
            if double:
                raise ValueError(f"two tasks give the {kind} {', '.join(sorted(double))}")
        for file in files:
            if not file.endswith((".tsv", ".jsonl")):
                raise ValueError(f"test file {file} must end in .tsv or .jsonl")
        for mean, of in self.means.items():
            for name in of:
                if name not in numbers:
                    raise ValueError(f"means.{mean}: {no_such('number', name, numbers)}")
        for file, (smallest, largest) in self.between.items():
            if file not in files:
                raise ValueError(f"between: {no_such('test file', file, files)}")
            if not smallest < largest:  # nor if one is NaN
                raise ValueError(f"between.{file}: write [smallest, largest], such as [0, 5]")
        if isinstance(self.hub, dict):
            folders = [folder for task in self.tasks.values() for folder in task.folders]
            for task in self.tasks.values():
                specs = (*task.scored.values(), *task.test.values())
                folders += [spec.folder for spec in specs if spec.folder is not None]
            for folder in self.hub:
                if folder not in folders:
                    raise ValueError(f"hub: {no_such('folder', folder, folders)}")
            if self.converted:
                raise ValueError("converted: write it below each folder of hub")
        return self

    def on_hub(self, folders: Sequence[str]) -> OnHub | None:
        """Where the first of a task's folders that the hub has is there; None if none is."""
        if isinstance(self.hub, str):
            return OnHub(repository=self.hub, config=folders[0], converted=self.converted)
        return next(filter(None, map((self.hub or {}).get, folders)), None)

    def select(self, names: Iterable[str]) -> list[Task]:
        """The tasks with these names.

        Raises:
            InputError: a name is unknown.
        """
        chosen = list(dict.fromkeys(names))
        if unknown := [name for name in chosen if name not in self.tasks]:
            raise InputError(f"suite {self.name}: {no_such('task', unknown[0], self.tasks)}")
        return [self.tasks[name] for name in chosen]

    def scores_of(self, names: Iterable[str]) -> set[str]:
        """The names of the scores that these tasks give, such as ``mnli`` and ``mnli-mm``."""
        return {score for task in self.select(names) for score in task.numbers}


def load_suite(name: str) -> Suite:
    """Load a built-in suite by its name, or the user's own by the path of its .yaml file.

    Raises:
        InputError: there is no such suite, or it is invalid; the message has one line per error.
    """
    suite = read_section("suite", name, _SUITES, Suite, {"name": Path(name).stem})
    if suite.name != Path(name).stem:  # judges and folders of scores go by the file
        raise InputError(f"suite {name}: leave out `name`: a suite is called what its file is")
    return suite


def suite_names() -> list[str]:
    """Names of the built-in suites, sorted."""
    return names_in(_SUITES)


_SUITES = resources.files("crammed") / "tasks" / "suites"
