"""The stages of a run, in order; a stage whose result already exists is skipped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crammed.adaptation.adapting import Adaptation
from crammed.config import FinetuneConfig, TokenizerConfig
from crammed.data.corpus import Corpus
from crammed.data.preparing.demo_tasks import write_tasks
from crammed.data.preparing.driver import prepare
from crammed.data.preparing.manifest import unchanged
from crammed.data.preparing.read.source import check_here
from crammed.data.preparing.workfolder import remove_left_overs
from crammed.data.tokenization.named import given_vocabulary
from crammed.errors import InputError
from crammed.evaluation.backbones.spec import BackboneSpec
from crammed.evaluation.evaluation import read_tasks
from crammed.evaluation.finetuning.engine import Numerics
from crammed.evaluation.folder import EvaluationFolder
from crammed.evaluation.minimal_pairs import scores_of
from crammed.evaluation.suite import SuiteEvaluator, raise_for_failed_tasks
from crammed.files.folders import new_folder
from crammed.hints import no_such
from crammed.machine.device import Device
from crammed.planning.settling import device_of, settle
from crammed.pretraining import result, train_and_export
from crammed.rules.choosing import Asked
from crammed.runs.directory import RunDir, read_scores_of
from crammed.tasks.read import all_tasks, folder_of, tasks_in
from crammed.tasks.task import WITHOUT_FINETUNING, Suite, load_suite, suite_names
from crammed.terminal.progress import Progress

MADE_HERE = "docs"
"""The suite whose data is generated from the documentation on this machine."""


@dataclass(frozen=True)
class GivenTasks:
    """A suite, and the folder with the data of its tasks.

    Attributes:
        file: of the suite, if it is the user's own.
        folder: None for the hub.
    """

    suite: Suite
    file: str | None
    folder: Path | None

    @classmethod
    def of(cls, suite: str, data: str) -> GivenTasks:
        """A suite by its name or file, and its folder, or ``hub``.

        Raises:
            InputError: there is no such suite that fine-tunes, or its file is faulty.
        """
        if suite in WITHOUT_FINETUNING:
            raise InputError(
                f"nothing is fine-tuned on {suite}: name it once the run has finished, with "
                f"crammed evaluate RUN --suite {suite}"
            )
        file = suite if suite not in suite_names() else None
        return cls(load_suite(suite), file, folder_of(data))

    def all_names(self, say: Callable[[str], None]) -> list[str]:
        """All tasks whose data is there.

        Args:
            say: takes a line for each task of a built-in suite whose folder lacks its split.

        Raises:
            InputError: there is none, or a folder of the user's own suite lacks its split.
        """
        return all_tasks(self.suite, self.folder, say if self.file is None else None)


@dataclass(frozen=True)
class _Tasks:
    """Some tasks of a suite, and the folder with their data; None for the hub."""

    suite: Suite
    names: list[str]
    data: Path | None


def run_everything(
    asked: Asked,
    out: Path,
    corpus_dir: Path | None,
    given: GivenTasks | None,
    progress: Progress,
    adaptation: Adaptation | None = None,
) -> dict[str, Any]:
    """Turn text and a budget into a trained, evaluated and exported encoder, and a report.

    Args:
        asked: what to run, `as_begun` in `out`; values it leaves open are chosen once the amount of
            text is known, before the tokenizer is trained.
        out: the run directory.
        corpus_dir: a prepared corpus; None prepares ``data.sources`` in the run directory.
        given: where the tasks of ``finetune.tasks`` are; None if all of them are made here.
        adaptation: a pretrained model to go on with; None trains from scratch.

    Returns:
        the result as printed by ``--json``.

    Raises:
        InputError: wrong input; a run directory that this call created is removed again.
        TaskFailed: everything finished, but a task has no score.
    """
    from crammed.report.page import write_report

    if corpus_dir is None and not (out / "corpus" / "manifest.json").exists():
        check_here(asked.config.data)
    if adaptation is not None:
        adaptation.check_old_text(asked.config.data)
    found = _find_tasks(asked.config.finetune, given)
    run, choose = _opened(asked, out, corpus_dir, progress, adaptation)
    with run:
        try:
            with _stage(run, "prepare"):
                corpus = (
                    Corpus(corpus_dir)
                    if corpus_dir
                    else _corpus_of(run, progress, choose, adaptation)
                )
                if adaptation is not None:
                    adaptation.original.check_corpus(corpus)
                tasks = [*_generated_tasks(run, found), *found]  # before training: it may fail
            device = device_of(run.config, corpus.rows, run.path)
            with _stage(run, "pretrain"):
                train_and_export(run, corpus, device, progress, adaptation=adaptation)
            with _stage(run, "evaluate"):
                _evaluate(run, tasks, device, progress)
            with _stage(run, "report"):
                report = write_report([run.path], run.path / "report.html")
            progress.line(f"report  {report}")
        except InputError:
            run.discard_if_new()
            raise
    _raise_for_failed(run, tasks)
    return result(out)


def _opened(
    asked: Asked,
    out: Path,
    corpus_dir: Path | None,
    progress: Progress,
    adaptation: Adaptation | None,
) -> tuple[RunDir, Callable[[float], TokenizerConfig] | None]:
    """The run directory, and a function that settles open values once the text is cleaned.

    The function is None if nothing is left to settle: nothing is open, or the corpus exists.
    """
    own = out / "corpus"
    if corpus_dir is None and (own / "manifest.json").exists():
        corpus_dir = own
    text = Corpus(corpus_dir) if corpus_dir is not None else None
    if text is not None or adaptation is not None:
        given = None if text is None else text.vocab_size
    else:
        given = given_vocabulary(asked.config.tokenizer)
    asked = asked.of_corpus(given)
    rows = text.rows if text is not None else None
    rough = asked.nominally(rows)
    device = device_of(rough, rows)  # a wrong one ends the run here
    if text is not None or not asked.open:
        chosen = settle(asked, rows, device, progress)
        return RunDir.open(out, chosen.config, chosen.choice), None
    run = RunDir.open(out, rough)

    def choose(tokens: float) -> TokenizerConfig:
        rows = tokens / asked.config.data.row_length
        chosen = settle(asked, rows, device_of(asked.nominally(rows), rows), progress)
        run.decide(chosen.config, chosen.choice)
        return chosen.config.tokenizer

    return run, choose


def _find_tasks(config: FinetuneConfig, given: GivenTasks | None) -> list[_Tasks]:
    """The tasks to evaluate on whose data is given, which must be without faults."""
    suite, made = given.suite if given else load_suite("glue"), load_suite(MADE_HERE).tasks
    wanted = [name for name in config.tasks if name in suite.tasks or name not in made]
    if unknown := [name for name in wanted if name not in suite.tasks]:
        own = "" if given else "; for a suite of your own, add --suite FILE.yaml --tasks-data DIR"
        raise InputError(no_such("task", unknown[0], (*suite.tasks, *made)) + own)
    if not wanted:
        return []
    if given is None:
        raise InputError(
            f"no data is named for tasks {', '.join(wanted)}: name their folder with --glue DIR "
            "(crammed run only), or leave out --tasks or finetune.tasks"
        )
    there = tasks_in(given.suite, given.folder)
    if missing := [name for name in wanted if name not in there]:
        where = given.folder or f"suite {suite.name} on the hub"
        raise InputError(f"{where} has no task {', '.join(missing)}: it has {', '.join(there)}")
    read_tasks(suite, suite.select(wanted), given.folder, config, given.file)
    return [_Tasks(suite, wanted, given.folder)]


def _corpus_of(
    run: RunDir,
    progress: Progress,
    choose: Callable[[float], TokenizerConfig] | None,
    adaptation: Adaptation | None,
) -> Corpus:
    path, config = run.path / "corpus", run.config
    if (path / "manifest.json").exists():
        remove_left_overs(path)
        return unchanged(Corpus(path), config.data)
    tokenizer = config.tokenizer
    if adaptation is not None:
        tokenizer = adaptation.original.tokenizer_config(run.path / "tokenizer", tokenizer)
    return prepare(config.data, tokenizer, path, progress, config.compute, choose=choose)


def _generated_tasks(run: RunDir, found: Sequence[_Tasks]) -> list[_Tasks]:
    """The run's demonstration tasks, generated from the documentation on this machine."""
    suite, others = load_suite(MADE_HERE), {name for each in found for name in each.names}
    names = [name for name in run.config.finetune.tasks if name not in others]
    if not names:
        return []
    folder = run.path / "tasks"
    if not folder.exists():
        with new_folder(folder) as aside:
            write_tasks(aside)
    return [_Tasks(suite, names, folder)]


@contextmanager
def _stage(run: RunDir, name: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    run.event("stage", name=name, seconds=time.monotonic() - began)


def _evaluate(run: RunDir, tasks: list[_Tasks], device: Device, progress: Progress) -> None:
    if not tasks:
        return
    protocol = run.config.finetune.at_width(run.config.model.width)
    spec = BackboneSpec(str(run.path))
    backbone = spec.load()
    workers = run.config.compute.workers if device.torch.type == "cpu" else None
    with EvaluationFolder(run.evaluation, backbone, protocol) as folder:
        evaluator = SuiteEvaluator(
            folder, backbone, spec, protocol, Numerics.on(device), progress, jobs=workers
        )
        for each in tasks:
            scores_of(evaluator, each.suite, each.suite.select(each.names), each.data, {})


def _raise_for_failed(run: RunDir, tasks: list[_Tasks]) -> None:
    """Raise `TaskFailed` if one of these has no score; `crammed evaluate` may have added others."""
    scores = read_scores_of(run.path)
    names = {name for each in tasks for name in each.suite.scores_of(each.names)}
    raise_for_failed_tasks({each.suite.name: scores[each.suite.name] for each in tasks}, names)
