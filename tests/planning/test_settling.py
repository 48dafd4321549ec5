"""What a run has chosen stays, whatever the load of the machine is when it goes on."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from crammed.budget import Budget
from crammed.cli import corpora, planning, studies, training
from crammed.config import RunConfig, TokenizerConfig
from crammed.data.corpus import Corpus
from crammed.data.preparing.driver import prepare
from crammed.doctor import TINY
from crammed.errors import InputError, Interrupted
from crammed.files.writing import write_json
from crammed.machine.device import Device
from crammed.pipeline import run_everything
from crammed.planning import oncard
from crammed.planning.settling import Measuring
from crammed.planning.speed import Measured
from crammed.rules.choosing import Asked, Choice, shape_of
from crammed.rules.recipe import ask
from crammed.rules.sizing import with_values
from crammed.runs.directory import RunDir, read_choice, read_config
from crammed.runs.resuming import as_begun, default_out
from crammed.study.result import Run
from crammed.terminal.progress import SILENT, Progress
from support.settled import settled
from support.study import run_of, write_study
from support.text import documents, write_jsonl

SLOW, FAST = 1e7, 1e10
OPEN = (
    "model.layers",
    "model.width",
    "batch.rows",
    "optim.lr",
    "optim.matrix_lr",
    "tokenizer.vocab_size",
)
WORDS = [word for word in TINY if not word.startswith(OPEN)]
OF_CORPUS = [word for word in WORDS if not word.startswith("data.")]
BUDGET = Budget.parse("2s")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes among which a second of a test and its text choose."""
    monkeypatch.setattr("crammed.rules.sizing.SHAPES", ((1, 16), (1, 32), (2, 32)))
    monkeypatch.setattr("crammed.rules.sizing.vocabulary", lambda width: 8 * width)


class Machine:
    """Measures whatever speed it is set to."""

    def __init__(self) -> None:
        self.speed, self.busy = SLOW, False
        self.asked: list[RunConfig] = []
        self.compiled: list[bool] = []

    def __call__(self, config: RunConfig, device: Device) -> Measured:
        self.asked.append(config)
        self.compiled.append(device.compile)
        return Measured(self.speed, self.busy)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr("crammed.planning.settling.training_speed", made)
    return made


def stopped_at(name: str, work: Callable[[], object]) -> None:
    """Do some work, which is stopped where it calls this function."""

    def stop(*_: object, **__: object) -> None:
        raise Interrupted("stopped")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(name, stop)
        with pytest.raises(Interrupted):
            work()


def asked(corpus: Corpus, *words: str, limit: str = "2s") -> Asked:
    return ask("crammed", [*OF_CORPUS, *words], {**corpus.settings(), "budget": {"limit": limit}})


def begun(out: Path, wanted: Asked, rows: int, speed: float) -> RunConfig:
    """A run that has begun on a machine of this speed."""
    chosen = settled(as_begun(out, wanted), rows, lambda config: speed)
    with RunDir.open(out, chosen.config, chosen.choice):
        pass
    return chosen.config


def choice_of(run: Path) -> Choice:
    choice = read_choice(run)
    assert choice is not None
    return choice


def never(config: RunConfig) -> float:
    pytest.fail("measured")


def test_a_run_keeps_what_it_chose_under_another_load(tmp_path: Path, corpus: Corpus) -> None:
    wanted = asked(corpus)
    slow = begun(tmp_path / "slow", wanted, corpus.rows, SLOW)
    fast = begun(tmp_path / "fast", wanted, corpus.rows, FAST)
    assert slow.model.width < fast.model.width
    for name, config, speed in (("slow", slow, SLOW), ("fast", fast, FAST)):
        again = settled(as_begun(tmp_path / name, wanted), corpus.rows, never)
        assert (again.config, again.choice.flops_per_second) == (config, speed)
    (tmp_path / "slow" / "choice.json").unlink()  # as older versions left it
    again = settled(as_begun(tmp_path / "slow", wanted), corpus.rows, never)
    assert (again.config, again.choice.flops_per_second) == (slow, None)


def test_a_run_is_found_again_by_its_words_alone(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wanted, typed = asked(corpus), asked(corpus, "batch.rows=2")
    path = default_out(wanted, "my.txt", "summary.json")
    begun(path, typed, corpus.rows, SLOW)
    assert default_out(typed, "my.txt", "summary.json") == path
    other = default_out(wanted, "my.txt", "summary.json")
    assert other != path  # which would train with rows that these words do not set
    begun(other, wanted, corpus.rows, SLOW)
    assert default_out(wanted, "my.txt", "summary.json") == other
    (other / "choice.json").unlink()  # as older versions left it
    assert default_out(wanted, "my.txt", "summary.json") == other


def pretrained(corpus: Corpus, out: Path, *words: str) -> None:
    training.pretrain([*OF_CORPUS, *words], corpus.path, BUDGET, None, out, as_json=True)


def test_a_run_that_was_stopped_goes_on_and_ends(
    tmp_path: Path, corpus: Corpus, machine: Machine, capsys: Any
) -> None:
    stopped_at("crammed.pretraining.pretrain", lambda: pretrained(corpus, tmp_path / "run"))
    assert machine.asked
    config, measured = read_config(tmp_path / "run"), len(machine.asked)
    machine.speed = FAST
    pretrained(corpus, tmp_path / "run")
    assert len(machine.asked) == measured
    assert read_config(tmp_path / "run") == config
    assert json.loads(capsys.readouterr().out)["u"] > 0.0
    pretrained(corpus, tmp_path / "run")  # which is finished
    assert len(machine.asked) == measured


def test_a_run_that_chose_on_a_busy_machine_chooses_again_until_it_has_begun(
    tmp_path: Path, corpus: Corpus, machine: Machine
) -> None:
    run, machine.busy = tmp_path / "run", True
    stopped_at("crammed.pretraining.pretrain", lambda: pretrained(corpus, run))
    small = read_config(run)
    assert choice_of(run).busy
    with pytest.raises(InputError, match=r"\(seed: 0 there, 1 here\)"):
        pretrained(corpus, run, "seed=1")
    machine.speed, machine.busy = FAST, False
    with RunDir.open(run, small) as opened:  # as a run that is stopped in its first update does
        opened.heartbeat(0.1)
    stopped_at("crammed.pretraining.pretrain", lambda: pretrained(corpus, run))
    assert read_config(run).model.width > small.model.width
    assert not choice_of(run).busy
    measured = len(machine.asked)
    pretrained(corpus, run)
    assert len(machine.asked) == measured


def test_it_is_said_once_that_the_machine_is_busy(
    corpus: Corpus, cpu: Device, machine: Machine
) -> None:
    said, config = io.StringIO(), asked(corpus).config
    measure = Measuring(cpu, Progress(said))
    for machine.busy in (False, True, True):
        assert measure(config) == SLOW
    lines = said.getvalue().splitlines()
    assert [line[:16] for line in lines if "measuring" not in line] == ["machine  is busy"]
    assert measure.busy
    assert "stop the command before its first update" in said.getvalue()


def test_a_plan_made_on_a_busy_machine_is_to_be_repeated(
    corpus: Corpus, cpu: Device, machine: Machine
) -> None:
    said, wanted, machine.busy = io.StringIO(), asked(corpus), True
    speeds = planning._here(wanted, corpus, 1.0, Progress(said))
    assert speeds.measure(wanted.config) == SLOW
    mend = "so the size that it suggests may be too small; repeat the command without that work\n"
    assert mend in said.getvalue()


def test_a_choice_from_a_busy_machine_stays_once_a_run_has_begun(
    tmp_path: Path, corpus: Corpus, machine: Machine
) -> None:
    run, machine.busy = tmp_path / "run", True
    stopped_at("crammed.pretraining.heldout_losses", lambda: pretrained(corpus, run))
    measured, config, machine.speed = len(machine.asked), read_config(run), FAST
    pretrained(corpus, run)
    assert (len(machine.asked), read_config(run)) == (measured, config)


def test_a_prepared_corpus_keeps_its_vocabulary_when_the_size_is_chosen_again(
    tmp_path: Path, machine: Machine
) -> None:
    wanted, run, machine.busy = of_text(tmp_path, 600), tmp_path / "run", True
    prepared(wanted, run)
    before, machine.speed, machine.busy = read_config(run), FAST, False
    prepared(wanted, run)
    after = read_config(run)
    assert after.model.width > before.model.width
    assert after.tokenizer == before.tokenizer


def test_a_busy_machine_that_measures_the_same_again_is_no_longer_noted(
    tmp_path: Path, corpus: Corpus, machine: Machine
) -> None:
    run, machine.busy = tmp_path / "run", True
    for busy in (True, False):
        machine.busy = busy
        stopped_at("crammed.pretraining.pretrain", lambda: pretrained(corpus, run))
        assert choice_of(run).busy == busy


def test_plan_foretells_what_pretrain_chooses(
    tmp_path: Path, corpus: Corpus, machine: Machine, capsys: Any
) -> None:
    for name, speed, fit in (("slow", SLOW, False), ("fast", FAST, False), ("2022", FAST, True)):
        machine.speed = speed
        recipe = "crammed-2022" if fit else "crammed"
        words = [recipe, *OF_CORPUS]
        planning.plan(words, corpus.path, BUDGET, 0.01, fit, True)
        planned = json.loads(capsys.readouterr().out)
        run = tmp_path / name
        train = partial(training.pretrain, words, corpus.path, BUDGET, None, run, fit, True)
        stopped_at("crammed.interface.training.train_and_export", train)
        config = read_config(run)
        assert (planned["best_size"]["layers"], planned["best_size"]["width"]) == shape_of(config)
        assert planned["chosen"]["batch.rows"] == config.batch.rows
        absent = {"tokenizer.vocab_size", *(["optim.matrix_lr"] if fit else [])}
        assert {*choice_of(run).follows} == {*OPEN} - absent
        capsys.readouterr()


def test_all_is_counted_with_the_vocabulary_that_the_corpus_has(
    tmp_path: Path,
    make_corpus: Callable[..., Corpus],
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    """And the one that was asked for is saved, with which the run is found again."""
    corpus, asked_for = make_corpus(documents(150), "tokenizer.vocab_size=8192"), 8192
    assert corpus.vocab_size < asked_for
    machine.speed = FAST

    def counted_speed(config: RunConfig, vocab_size: int, card: Any) -> Any:
        counted.append((config, vocab_size))
        return count(config, vocab_size, card)

    count = oncard.counted_speed
    counted: list[tuple[RunConfig, int]] = []
    monkeypatch.setattr("crammed.planning.oncard.counted_speed", counted_speed)
    run, words = tmp_path / "run", ["crammed", *OF_CORPUS]
    train = partial(training.pretrain, words, corpus.path, BUDGET, None, run, as_json=True)
    stopped_at("crammed.interface.training.train_and_export", train)
    planning.plan(words, corpus.path, BUDGET, 0.01)
    planning.plan(words, corpus.path, BUDGET, device="RTX 4090")
    seen = [(config, config.tokenizer.vocab_size) for config in machine.asked] + counted
    assert {vocabulary for _, vocabulary in seen} == {corpus.vocab_size}
    assert {config.tokenizer.vocab_size for config, _ in seen} == {corpus.vocab_size}
    assert read_config(run).tokenizer.vocab_size == asked_for
    measured = len(machine.asked)
    stopped_at("crammed.interface.training.train_and_export", train)
    assert len(machine.asked) == measured


# ---- text that is not prepared yet


def of_text(folder: Path, count: int, limit: str = "2s") -> Asked:
    text = write_jsonl(folder / f"{count}.jsonl", documents(count))
    return ask("crammed", WORDS, {"data": {"sources": [str(text)]}, "budget": {"limit": limit}})


def prepared(
    wanted: Asked,
    out: Path,
    until: str = "crammed.pipeline.train_and_export",
    corpus: Path | None = None,
) -> None:
    """The beginning of ``crammed run``."""
    stopped_at(until, lambda: run_everything(as_begun(out, wanted), out, corpus, None, SILENT))


def test_a_run_chooses_when_it_knows_how_much_text_there_is(
    tmp_path: Path, machine: Machine
) -> None:
    machine.speed = FAST
    for count, shape in ((150, (1, 16)), (600, (1, 32))):
        run = tmp_path / f"{count}"
        prepared(of_text(tmp_path, count), run)
        config = read_config(run)
        manifest = json.loads((run / "corpus" / "manifest.json").read_text())
        assert shape_of(config) == shape
        assert manifest["tokenizer"]["vocab_size"] == 8 * shape[1] == config.tokenizer.vocab_size


@pytest.mark.parametrize("from_text", [True, False])
def test_speed_is_measured_as_a_run_will_train_that_its_text_ends(
    tmp_path: Path,
    corpus: Corpus,
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    cpu: Device,
    from_text: bool,
) -> None:
    """Uncompiled, since the text is read long before the budget is spent."""
    monkeypatch.setattr(
        "crammed.planning.settling.choose_device",
        lambda _, seconds: replace(cpu, compile=seconds > 1e5),
    )
    limit, values = "1000h", {"compute.lanes": 1, "budget.most_epochs": 8.0}
    wanted = of_text(tmp_path, 150, limit) if from_text else asked(corpus, limit=limit)
    wanted = replace(wanted, config=with_values(wanted.config, values))
    prepared(wanted, tmp_path / "run", corpus=None if from_text else corpus.path)
    assert machine.compiled
    assert not any(machine.compiled)


def test_a_run_that_was_stopped_while_it_prepared_keeps_its_choice(
    tmp_path: Path, machine: Machine
) -> None:
    wanted, machine.speed = of_text(tmp_path, 600), FAST

    for function in ("read_and_clean", "train_from_words"):
        prepared(wanted, tmp_path / "run", f"crammed.data.preparing.driver.{function}")
    config, measured = read_config(tmp_path / "run"), len(machine.asked)
    assert shape_of(config) == (1, 32)
    machine.speed = SLOW
    prepared(wanted, tmp_path / "run")
    assert read_config(tmp_path / "run") == config
    assert len(machine.asked) == measured


def test_a_run_that_was_killed_while_it_noted_its_choice_chooses(
    tmp_path: Path, machine: Machine
) -> None:
    wanted, run, after = of_text(tmp_path, 600), tmp_path / "run", list[Path]()

    def write(path: Path, values: Any) -> None:
        after.extend([path] if machine.asked else [])
        if len(after) == 2:  # the second file after measuring
            raise Interrupted("stopped")
        write_json(path, values)

    machine.speed = FAST
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("crammed.runs.directory.write_json", write)
        with pytest.raises(Interrupted):
            run_everything(wanted, run, None, None, SILENT)
    machine.speed = SLOW
    prepared(wanted, run)
    assert read_config(run).model.width == 16
    assert choice_of(run).flops_per_second == SLOW


def test_a_corpus_has_the_vocabulary_that_suits_its_text(
    tmp_path: Path, machine: Machine, capsys: Any
) -> None:
    machine.speed = FAST
    for count, size in ((150, 128), (600, 256)):
        text = write_jsonl(tmp_path / f"{count}.jsonl", documents(count))
        corpora.prepare(WORDS, [str(text)], BUDGET, tmp_path / f"{count}", None, as_json=True)
        assert json.loads(capsys.readouterr().out)["tokenizer"]["vocab_size"] == size


def test_tokens_are_estimated_from_the_text_that_is_packed(tmp_path: Path) -> None:
    for name, letter, bytes_of_it in (("latin", "a", 1), ("kana", "あ", 3)):
        text = write_jsonl(tmp_path / f"{name}.jsonl", [letter * 200 + f" {n}" for n in range(600)])
        config = of_text(tmp_path, 600).config
        source = config.data.sources[0].model_copy(update={"path": str(text), "weight": 2.0})
        data = config.data.model_copy(update={"sources": (source,)})
        seen: list[float] = []

        def choose(tokens: float, seen: list[float] = seen) -> TokenizerConfig:
            seen.append(tokens)
            return TokenizerConfig(vocab_size=64)

        made = prepare(data, config.tokenizer, tmp_path / name, SILENT, choose=choose)
        once = 600 * 200 - made.manifest["heldout"]["characters"]
        assert seen == [pytest.approx(2 * once * bytes_of_it / 4, rel=0.05)]
        assert made.vocab_size <= 64


def test_the_plan_of_a_recipe_that_sets_its_size_names_the_flag(
    corpus: Corpus, machine: Machine, capsys: Any
) -> None:
    words = ["crammed-2022", *OF_CORPUS, "model.layers=3", "model.width=32"]
    planning.plan(words, corpus.path, BUDGET, 0.01, False, False)
    said = capsys.readouterr().out
    assert "3 x 32 in updates of 8,192 rows: as set" in said
    assert "--fit takes it" in said
    planning.plan(words[:1] + OF_CORPUS, corpus.path, BUDGET, 0.01, True, False)
    assert "--fit" not in capsys.readouterr().out


# ---- studies


@pytest.fixture
def study(tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Runs a study of two recipes that follow the budget; its arms are not trained."""
    (tmp_path / "mine.yaml").write_text("extends: crammed\nmasking: {rate: 0.4}\n")
    arms = {"plain": [], "high": ["masking.rate=0.5"], "mine": [str(tmp_path / "mine.yaml")]}
    file = write_study(tmp_path, arms, ["crammed", *OF_CORPUS])

    def train(run: Any, command: list[str], *_: Any) -> Run:
        words = [word for word in command if "=" in word]
        assert {word.partition("=")[0] for word in words} >= {*OPEN} - {"tokenizer.vocab_size"}
        return run_of(4.0 + run.seed)

    monkeypatch.setattr("crammed.study.running.runner._train", train)
    # What the seconds of the arms buy is measured as well, for seconds.
    speed = "crammed.study.running.seconds.training_speed"
    monkeypatch.setattr(speed, lambda *_: Measured(FAST, False))

    def study_it() -> Any:
        studies.study(file, None, corpus.path, BUDGET, 2, tmp_path / "out", 1, True)
        return json.loads((tmp_path / "out" / "study.json").read_text())

    return study_it


def test_a_study_measures_once_for_each_recipe(study: Callable[[], Any], machine: Machine) -> None:
    first = study()
    assert {config.recipe for config in machine.asked} == {"crammed", "mine"}
    measured = len(machine.asked)
    assert measured == len({(config.recipe, shape_of(config)) for config in machine.asked})
    assert {entry["flops_per_second"] for entry in first["chosen"].values()} == {SLOW}
    machine.speed = FAST
    again = study()
    assert len(machine.asked) == measured
    assert (again["chosen"], again["arms"]) == (first["chosen"], first["arms"])


def test_a_study_that_was_stopped_early_keeps_its_choice(
    study: Callable[[], Any], machine: Machine
) -> None:
    stopped_at("crammed.study.running.runner._train_all", study)
    measured, machine.speed = len(machine.asked), FAST
    assert {entry["flops_per_second"] for entry in study()["chosen"].values()} == {SLOW}
    assert len(machine.asked) == measured
