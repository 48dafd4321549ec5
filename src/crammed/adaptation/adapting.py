"""An adaptation: what it trains, what it measures before and after, what it says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import nn

from crammed.adaptation import objective
from crammed.adaptation.general_text import OldText, Replay, TaskTexts
from crammed.adaptation.original import Original
from crammed.adaptation.shape import refuse_foreign_keys, refuse_unfit, with_defaults
from crammed.adaptation.words import in_all
from crammed.config import DataConfig, RunConfig, SourceConfig
from crammed.config.kinds import overlaid
from crammed.data.corpus import Corpus
from crammed.data.heldout import HeldoutRows, heldout_rows, rows_of_corpus
from crammed.data.preparing.read.source import open_sources
from crammed.data.tokenization.tokenizer import Specials
from crammed.errors import InputError
from crammed.export.card import Metadata, figures, usage
from crammed.export.huggingface import Exported
from crammed.machine.device import Device
from crammed.model.heldout import heldout_losses, loss_by_source
from crammed.quantity import counted, quantity
from crammed.rules.choosing import Asked
from crammed.rules.recipe import ask
from crammed.runs.directory import RunDir
from crammed.runs.logs import read_events
from crammed.runs.summary import Training
from crammed.terminal.progress import Progress
from crammed.training.update.build import step_of, weighed, word_beginnings
from crammed.training.update.step import TrainStep

RECIPE = str(resources.files("crammed") / "adaptation" / "adapt.yaml")
BEFORE, BEFORE_OLD = "before", "before_old"
"""The events that hold what was measured before training, on the new text and on the old."""


def ask_for(
    original: Original,
    overrides: list[str],
    fixed: dict[str, Any],
    replay: Replay | None = None,
    tasks: TaskTexts | None = None,
) -> Asked:
    """Read what a command asks for.

    Args:
        overrides, fixed: as in `crammed.rules.recipe.ask`.
        replay: general text to mix into the sources.
        tasks: texts of tasks to mix into them.

    Raises:
        InputError: as there, or the model cannot follow what is asked for.
    """
    refuse_foreign_keys(overrides)
    fixed = {**fixed, "adapts": original.sha256}
    asked = ask(RECIPE, overrides, fixed)
    for more in (tasks, replay):
        if more is not None:
            sources = more.beside(asked.config.data)
            own = overlaid(fixed, {"data": {"sources": sources}}, RunConfig)
            asked = ask(RECIPE, overrides, own)
    refuse_unfit(asked.config, original.name)
    if asked.config.compute.recompute == "on" and not original.recomputes:
        raise InputError(
            f"transformers cannot recompute the activations of {original.name}: leave out "
            "compute.recompute=on"
        )
    return with_defaults(asked, original.shape, original.backbone.max_length, original.name)


@dataclass(frozen=True)
class Adapted:
    """An adapted model whose training has ended."""

    original: Original
    config: RunConfig
    model: nn.Module
    tokenizer: Tokenizer
    row_length: int

    def masked_lm(self, device: torch.device) -> nn.Module:
        """The model, in evaluation mode."""
        return self.model.to(device).eval()

    def export(self, out: Path, training: Training) -> Exported:
        """Write the model to the new folder `out`, in its own class with its own tokenizer."""
        mask = self.original.backbone.tokenizer.mask_token
        card = _model_card(self.original, training, mask)
        return self.original.export(self.model, self.config, out, card)


def _model_card(original: Original, training: Training, mask: str) -> str:
    """Markdown that says what the model was adapted from, how, and how to load it."""
    adapted = training.adapted
    assert adapted is not None
    before = adapted.heldout["loss@0.15"]
    tokenizer = "its own tokenizer"
    if adapted.new_words:
        tokenizer += f", which was given {counted(adapted.new_words, 'word')}"
    length = training.tokens // training.rows if training.rows else 0
    origin = Metadata.inherited(original.folder)
    tags = ["custom_code"] if original.ours else []
    license = "licence" + (f" ({origin.license})" if origin.license else "")
    together = []
    if adapted.earlier is not None:
        words = in_all(adapted.earlier.values(), training.charged_seconds, training.tokens)
        together = [f"- with the run that it was adapted from: {words}"]
    return "\n".join(
        [
            *origin.lines(*tags),
            f"# `{original.name}`, adapted",
            "",
            f"`{original.name}` ({original.backbone.parameters:,} parameters) was trained before; "
            f"its masked-language modelling was continued on other text, with {tokenizer}, on "
            f"rows of {length} tokens. Its {license} and limits apply.",
            "",
            *figures(training),
            *together,
            f"- before that, its held-out loss on this text was {before:.3f} with 15 % masked",
            "",
            usage(mask, custom=original.ours),
            "",
        ]
    )


@dataclass(frozen=True)
class Adaptation:
    """Masked-language modelling of a pretrained encoder goes on.

    Attributes:
        old_text: text of the old domain to measure forgetting on; None if none is named.
    """

    original: Original
    old_text: str | None = None

    def check_old_text(self, data: DataConfig) -> None:
        """Find the old text before anything is prepared, as a run with this `data` will read it.

        Raises:
            InputError: there is no such text.
        """
        if self.old_text is not None:
            old = (SourceConfig(path=self.old_text),)
            open_sources(data.model_copy(update={"sources": old}))

    def build(self, config: RunConfig, corpus: Corpus, device: Device) -> TrainStep:
        """The step that trains it: that of our models, if it is one of them."""
        own = self.original.own(config)
        if own is None:
            return objective.step_of(self.original.model(config), config, corpus, device)
        begins = word_beginnings(config, corpus, device.torch)
        specials = Specials.of(corpus.tokenizer)
        step = step_of(own.to(device.torch), config, specials, device, begins)
        return weighed(step, config, corpus, device.torch)

    def announce(self, config: RunConfig, device: Device, progress: Progress) -> None:
        """Log what is about to be trained."""
        original = self.original
        for reason in device.reasons:
            progress.line(f"device  {reason}")
        as_before = original.earlier is not None and config.model.dropout == original.dropout
        progress.line(
            f"model  '{original.name}' ({quantity(original.backbone.parameters)} parameters) is "
            f"adapted, which is outside the rules of Cramming: updates of "
            f"{counted(config.batch.rows, 'row')} of {config.data.row_length} tokens, learning "
            f"rate {config.optim.lr:.1e}, dropout {config.model.dropout:g}"
            f"{', as in its own run' * as_before}"
        )
        if original.is_ours(config):
            progress.line("engine  our own, which computes the same logits as transformers")
        if words := original.new_words:
            progress.line(
                f"words  the tokenizer gets {counted(len(words), 'word')}, such as {words[0]}, "
                "whose embeddings are initialised to the mean of the others"
            )
        if lacks := original.lacks:
            progress.line(
                f"note  '{original.name}' comes without {counted(len(lacks), 'tensor')} of its "
                f"masked-language-model head, such as {min(lacks)}: they are initialised at random"
            )

    def measure_before(
        self, run: RunDir, corpus: Corpus, device: Device, progress: Progress
    ) -> None:
        """Measure held-out loss before training, unless the run has done so."""
        old = OldText.of(run, self.old_text, progress)
        before, before_old = self._found(run, BEFORE), self._found(run, BEFORE_OLD)
        known_old = old is None or before_old.get("sha256") == old.about["sha256"]
        if before and known_old:
            return
        with progress.task("before training") as task:
            model = self.original.model(run.config).to(device.torch).eval()
            if not before:
                rows = rows_of_corpus(corpus, run.config.data.heldout_rows)
                heldout, by_source = self._measured(model, rows, device)
                begun = {"u": 0.0, "update": 0, "tokens": 0}
                run.event("heldout", **begun, rows=len(rows.ids), **heldout)
                run.event(BEFORE, heldout=heldout, heldout_by_source=by_source)
                task.update(1, f"held-out loss {heldout['loss@0.15']:.3f} at 15 %")
            if old is not None and not known_old:
                losses = self._on(old, model, run.config, corpus, device)
                run.event(BEFORE_OLD, **old.about, heldout=losses)

    def note_unmeasured(self, done: Training, progress: Progress) -> None:
        """Log that a finished run was not measured on the old text that is named now."""
        if self.old_text is None or done.adapted is None:
            return
        name, measured = Path(self.old_text).name, done.adapted.old_text
        if measured is None or measured.name != name:
            progress.line(
                f"note  --old-text has no effect, as this run has finished without {name}: adapt "
                "again with another --out to measure losses on it"
            )

    def result(
        self,
        run: RunDir,
        model: nn.Module,
        corpus: Corpus,
        device: Device,
        progress: Progress,
    ) -> dict[str, Any]:
        """What ``summary.json`` says of what was adapted, and of the old text."""
        before, old = self._found(run, BEFORE), OldText.of(run, None, progress)
        earlier = self.original.earlier
        forgotten = None
        if old is not None:
            after = self._on(old, model.eval(), run.config, corpus, device)
            forgotten = {
                **old.about,
                "before": self._found(run, BEFORE_OLD)["heldout"],
                "after": after,
            }
        return {
            "model": self.original.name,
            "sha256": self.original.sha256,
            "random_weights": len(self.original.lacks),
            "new_words": len(self.original.new_words),
            "heldout": before["heldout"],
            "heldout_by_source": before["heldout_by_source"],
            "old_text": forgotten,
            "earlier": None if earlier is None else earlier.values(),
        }

    def outside_rules(self) -> str:
        """Why the run does not count as one of Cramming."""
        name = self.original.name
        if self.original.earlier is None:
            return f"adapted from {name}, whose own training is not counted"
        return f"adapted from {name}, whose own training is not part of this run's budget"

    def finished(self, model: nn.Module, config: RunConfig, corpus: Corpus) -> Adapted:
        """The model, once its training has ended."""
        return Adapted(self.original, config, model, corpus.tokenizer, corpus.row_length)

    def _measured(
        self, model: nn.Module, rows: HeldoutRows, device: Device
    ) -> tuple[dict[str, float], dict[str, dict[str, float | None]]]:
        mask = self.original.backbone.mask
        assert mask is not None
        several = rows.sources is not None
        heldout, losses = heldout_losses(model, rows, mask, device.torch, each=several)
        return heldout, loss_by_source(rows, losses)

    def _on(
        self,
        old: OldText,
        model: nn.Module,
        config: RunConfig,
        corpus: Corpus,
        device: Device,
    ) -> dict[str, float]:
        """Losses on the old text, in rows like those of the new."""
        most, length = config.data.heldout_rows, corpus.row_length
        rows = heldout_rows(corpus.tokenizer, old.file, most, length)
        return self._measured(model, rows, device)[0]

    def _found(self, run: RunDir, name: str) -> Mapping[str, Any]:
        """The last event of this name; empty if there is none."""
        found = [event for event in read_events(run.path) if event["event"] == name]
        return found[-1] if found else {}
