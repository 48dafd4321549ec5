"""What trains a model: run, pretrain, adapt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from crammed.adaptation.adapting import Adaptation, ask_for
from crammed.adaptation.general_text import Replay, TaskTexts
from crammed.adaptation.new_words import words_to_add
from crammed.adaptation.original import Original
from crammed.config.arguments import File, checked
from crammed.data.corpus import Corpus
from crammed.errors import InputError, TaskFailed
from crammed.interface import asking
from crammed.interface.results import Run
from crammed.interface.turn import own_turn
from crammed.machine.device import Device, choose_kind
from crammed.machine.workers import world_size
from crammed.pipeline import GivenTasks, run_everything
from crammed.planning.settling import device_of, settle, tell, told
from crammed.pretraining import train_and_export
from crammed.rules.choosing import Asked
from crammed.runs.directory import RunDir
from crammed.terminal.progress import Progress
from crammed.training.distributed import (
    Group,
    compare_folders,
    compare_setups,
    follow,
    joined_group,
)
from crammed.training.plan import refuse_too_little
from crammed.training.update.memory import refuse_too_large


@contextmanager
def _tried_again(run: Path) -> Iterator[None]:
    """Say how to try failed tasks again: without a folder, the same words begin another run."""
    try:
        yield
    except TaskFailed as error:
        again = f"to try them again, repeat the command with --out {run}"
        raise TaskFailed(f"{error}; {again}") from error


@checked
@own_turn()
def run(
    recipe: str | None = None,
    overrides: asking.Overrides = (),
    *,
    data: asking.Texts = (),
    corpus: File | None = None,
    budget: asking.Limit | None = None,
    suite: File = "glue",
    tasks_data: File | None = None,
    glue: File | None = None,
    tasks: asking.Tasks | None = None,
    seed: int | None = None,
    out: File | None = None,
    fit: bool = False,
) -> Run:
    """Do everything, as ``crammed run``: prepare, pretrain, evaluate, export, report.

    The same call again continues an unfinished run, and returns a finished one.

    Args:
        recipe: a recipe's name or .yaml file; None is ``crammed``.
        overrides: values in place of the recipe's, such as ``{"model.layers": 4}``.
        data: files or folders of text, or names such as ``hub:NAME``.
        corpus: a prepared corpus, in place of `data`.
        budget: such as ``1h`` or ``500updates``; None is the recipe's.
        suite: a built-in suite, or a .yaml file of tasks.
        tasks_data: folder of the suite's tasks to fine-tune on, or ``hub``.
        glue: short for ``tasks_data`` of the suite ``glue``.
        tasks: names of tasks; None is every task in the folder.
        out: the run directory; None chooses one below ``runs``.
        fit: let everything that has a rule follow from the budget, unless `overrides` set it.

    Raises:
        InputError: something given is wrong, or missing.
        TaskFailed: everything finished, but a task has no score.
    """
    if world_size() > 1:
        raise InputError("run trains in one process: start crammed pretrain with torchrun instead")
    fixed: dict[str, Any] = {}
    given = _given_tasks(str(suite), tasks_data, glue)
    notes: list[str] = []
    if tasks is not None:
        fixed["finetune"] = {"tasks": asking.task_names(tasks)}
    elif given is not None:
        fixed["finetune"] = {"tasks": given.all_names(notes.append)}
    asked, opened, path = asking.configure(
        recipe, overrides, fixed, budget, seed, data, corpus, fit=fit, out=out, last="report.html"
    )
    assert path is not None
    known = (opened.vocab_size, opened.rows) if opened is not None else (None, None)
    config = asked.nominally(known[1])
    vocab = known[0] or config.tokenizer.vocab_size
    refuse_too_large(config, vocab, choose_kind(config.compute, []))  # before preparing
    refuse_too_little(config, *known)
    with asking.shown_progress() as progress, _tried_again(path):
        asking.show_recipe(progress, asked)
        for line in (f"run  {path}", *notes):
            progress.line(line)
        run_everything(asked, path, _path(corpus), given, progress)
    return Run(path)


def _given_tasks(suite: str, data: File | None, glue: File | None) -> GivenTasks | None:
    """Where the tasks are that options name, if any do."""
    if glue is not None and (data is not None or suite != "glue"):
        raise InputError("use --glue DIR, or --suite with --tasks-data, not both")
    data = data if glue is None else glue
    if data is None and suite != "glue":
        raise InputError(f"suite {suite} needs the folder of its tasks: --tasks-data DIR")
    return None if data is None else GivenTasks.of(suite, str(data))


@checked
@own_turn()
def pretrain(
    recipe: str | None = None,
    overrides: asking.Overrides = (),
    *,
    corpus: File,
    budget: asking.Limit | None = None,
    seed: int | None = None,
    out: File | None = None,
    fit: bool = False,
) -> Run:
    """Train an encoder on a prepared corpus and export it, as ``crammed pretrain``.

    Arguments and errors are those of `run`. Several processes that ``torchrun`` started train one
    model together, as with the command; all of them return its run.
    """
    if out is None and world_size() > 1:
        raise InputError("several processes need a common run directory: --out RUN_DIR")
    asked, opened, path = asking.configure(
        recipe, overrides, {}, budget, seed, (), corpus, fit=fit, out=out, last="summary.json"
    )
    assert opened is not None
    assert path is not None
    rough = asked.nominally(opened.rows)
    refuse_too_little(rough, opened.vocab_size, opened.rows)
    device = device_of(rough, opened.rows, path)
    with joined_group(device) as group:
        if group is None or group.rank == 0:
            with asking.shown_progress() as progress:
                asking.show_recipe(progress, asked)
                _lead(asked, opened, path, device, progress, group)
            return Run(path)
        config = told(asked, group).config
        device = device_of(config, opened.rows, path)
        compare_setups(config, opened, device, group)
        compare_folders(path, group)
        if not (path / "summary.json").exists():  # in a finished run there is nothing to follow
            follow(config, opened, path / "checkpoints", device, group)
    return Run(path)


def _lead(
    asked: Asked, corpus: Corpus, out: Path, device: Device, progress: Progress, group: Group | None
) -> None:
    """Settle what is trained, train it, and let the other processes follow."""
    chosen = settle(asked, corpus.rows, device, progress, group)
    device = device_of(chosen.config, corpus.rows, out)  # the size decides whether it is compiled
    if group is not None:
        tell(chosen, group)
        compare_setups(chosen.config, corpus, device, group)
    run_dir = RunDir.open(out, chosen.config, chosen.choice)
    whole = group.whole(device) if group is not None else device
    with run_dir:
        try:
            if group is not None:
                compare_folders(out, group)
            progress.line(f"run  {run_dir.path}")
            train_and_export(run_dir, corpus, whole, progress, group)
        except InputError:
            run_dir.discard_if_new()
            raise


@checked
@own_turn()
def adapt(
    model: File,
    overrides: asking.Overrides = (),
    *,
    data: asking.Texts = (),
    corpus: File | None = None,
    replay: str | None = None,
    old_text: File | None = None,
    task_adaptive: File | None = None,
    tasks_data: File | None = None,
    new_words: File | int | None = None,
    budget: asking.Limit | None = None,
    seed: int | None = None,
    out: File | None = None,
) -> Run:
    """Continue pretraining an encoder on your own text, as ``crammed adapt``.

    Args:
        model: a run, a Hugging Face folder, or a name on the hub.
        replay: general text to mix in, such as ``wiki.jsonl:0.1``.
        old_text: text like the model's old text, to measure forgetting.
        task_adaptive: a suite; the texts of its tasks' training rows are learned from as well, or
            alone without `data`.
        tasks_data: folder of that suite's tasks, or ``hub``.
        new_words: words to add to the tokenizer: a file with one in each line, or how many of the
            most frequent ones in the text that the tokenizer splits.

    The other arguments, and errors, are those of `run`.
    """
    if world_size() > 1:
        raise InputError("adapt trains in one process: start it without torchrun")
    original = Original.find(str(model))
    mixed = _replay(replay, corpus)
    tasks = _task_texts(task_adaptive, tasks_data, corpus)
    read = partial(asking.configure, None, overrides, {}, budget, seed, data, corpus)
    ask = partial(ask_for, replay=mixed, tasks=tasks)
    if new_words is not None:
        if corpus is not None and str(new_words).isdecimal():
            raise InputError(
                "--new-words N takes the words from the text: name it with --data, not --corpus"
            )
        text = read(ask=partial(ask, original))[0].config.data
        words = words_to_add(str(new_words), original.backbone.tokenizer, text)
        original = original.with_words(words)
    asked, opened, path = read(out=out, last="report.html", ask=partial(ask, original))
    assert path is not None
    if opened is not None:
        original.check_corpus(opened)
    refuse_too_little(asked.config, None, None if opened is None else opened.rows)
    old = None if old_text is None else asking.absolute_source(str(old_text), "--old-text")
    with asking.shown_progress() as progress, _tried_again(path):
        asking.show_recipe(progress, asked)
        progress.line(f"run  {path}")
        adaptation = Adaptation(original, old)
        run_everything(asked, path, _path(corpus), None, progress, adaptation)
    return Run(path)


def _replay(words: str | None, corpus: File | None) -> Replay | None:
    if words is None:
        return None
    if corpus is not None:
        raise InputError(
            "--replay needs text that is not yet prepared: name it with --data, not --corpus"
        )
    given = Replay.parse(words)
    return Replay(asking.absolute_source(given.path, "--replay"), given.share)


def _task_texts(suite: File | None, data: File | None, corpus: File | None) -> TaskTexts | None:
    if suite is None and data is None:
        return None
    if suite is None:
        raise InputError(
            "--tasks-data needs the suite whose texts to learn from: --task-adaptive SUITE"
        )
    if data is None:
        raise InputError(f"suite {suite} needs the folder of its tasks: --tasks-data DIR")
    if corpus is not None:
        raise InputError(
            "--task-adaptive needs text that is not yet prepared: name it with --data, not --corpus"
        )
    return TaskTexts.of(str(suite), str(data))


def _path(file: File | None) -> Path | None:
    return None if file is None else Path(file)
