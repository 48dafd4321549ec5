"""A run's whole configuration, and its identity."""

from __future__ import annotations

import hashlib
import json
import math
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from crammed.config.base import Later, Section
from crammed.config.corpus import DataConfig, TokenizerConfig
from crammed.config.finetuning import FinetuneConfig
from crammed.config.losses import CrossEntropyConfig, Loss
from crammed.config.model import ModelConfig
from crammed.config.objectives import (
    CausalFirstConfig,
    ContrastConfig,
    ElectraConfig,
    MaskedConfig,
    Objective,
)
from crammed.config.optim import AdamWConfig, LibraryConfig, OptimConfig
from crammed.config.training import (
    BatchConfig,
    BudgetConfig,
    ComputeConfig,
    MaskingConfig,
    OrderConfig,
    TrainConfig,
)
from crammed.files.addresses import without_secrets
from crammed.schedule import Schedule, Triangle


class RunConfig(Section):
    """Everything that determines what a run computes."""

    recipe: str
    description: str = ""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    corpus: str | None = None
    """Hash of the corpus that was given; null prepares one from `data.sources`."""
    adapts: str | None = None
    """Hash of the pretrained model that is trained further; null trains one from scratch."""
    budget: BudgetConfig = BudgetConfig()
    data: DataConfig = DataConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelConfig = ModelConfig()
    masking: MaskingConfig = MaskingConfig()
    objective: Annotated[Objective, Later()] = MaskedConfig()
    loss: Annotated[Loss, Later()] = CrossEntropyConfig()
    optim: OptimConfig = AdamWConfig()
    schedule: Schedule = Triangle()
    batch: BatchConfig = BatchConfig()
    order: OrderConfig = OrderConfig()
    train: TrainConfig = TrainConfig()
    compute: ComputeConfig = ComputeConfig()
    finetune: FinetuneConfig = FinetuneConfig()

    @model_validator(mode="after")
    def _sections_fit(self) -> RunConfig:
        length = self.data.row_length
        if length > self.model.max_length:
            raise ValueError(
                f"data.row_length {length} is longer than model.max_length "
                f"{self.model.max_length}: set model.max_length={length}"
            )
        if self.finetune.max_length > self.model.max_length:
            raise ValueError(
                f"finetune.max_length {self.finetune.max_length} is longer than "
                f"model.max_length {self.model.max_length}: lower it, or set "
                f"model.max_length={self.finetune.max_length}"
            )
        if self.train.attention == "document" and not self.data.sep:
            raise ValueError(
                "train.attention=document needs data.sep=true: without [SEP], rows do not show "
                "where documents end; set train.attention=row"
            )
        if self.train.attention == "document" and self.model.mixer.startswith("fourier"):
            raise ValueError(
                f"model.mixer={self.model.mixer} mixes the whole row: set train.attention=row"
            )
        if self.train.average is not None and self.train.latest is not None:
            raise ValueError("train.average and train.latest are two averages: leave one out")
        if self.train.sharpness is not None and self.measures_curvature(0):
            raise ValueError(
                "the optimizer has a second pass of its own: leave train.sharpness out"
            )
        if self.batch.adaptive is not None and self.passes_per_update() > 1.0:
            raise ValueError(
                "batch.adaptive needs updates of one pass: leave out train.sharpness, and "
                "optimizers that measure curvature"
            )
        if self.batch.adaptive is not None and self.compute.microbatch_rows is not None:
            raise ValueError(
                "batch.adaptive computes batch.quantum rows at a time: leave out "
                "compute.microbatch_rows"
            )
        self._check_loss()
        if self.train.layer_drop_rises and (self.adapts or not self.model.layer_drop):
            raise ValueError(
                "train.layer_drop_rises needs a model from scratch and model.layer_drop above 0"
            )
        self._check_growth()
        self._check_lengths()
        self._check_shortcuts()
        self._check_scaling()
        self._check_objective()
        for rate in (self.masking.rate, self.masking.final_rate):
            if rate is not None and round(rate * (shortest := length // self.pieces_at(0.0))) < 1:
                raise ValueError(f"masking {rate} of {shortest} tokens masks none: raise it")
        return self

    def _check_loss(self) -> None:
        name = self.loss.name
        if name != "cross-entropy" and self.train.early_stop is not None:
            raise ValueError(f"train.early_stop is a cross-entropy: leave it out with loss {name}")
        model = self.model
        logits = self.adapts or self.masking.z_loss or model.decoder_bias
        if name == "embedding" and (logits or not model.tied_decoder):
            raise ValueError(
                "loss.name=embedding has no logits: set masking.z_loss=0, model.decoder_bias=false "
                "and model.tied_decoder=true, and do not adapt a pretrained model with it"
            )
        if self.masking.unit != "token" and self.tokenizer.kind == "wordlevel":
            raise ValueError(
                "every token of tokenizer.kind=wordlevel is a word: leave out masking.unit"
            )

    def _check_growth(self) -> None:
        points, model = self.train.grow_at, self.model
        if not points:
            return
        if list(points) != sorted({*points} - {0.0}):
            raise ValueError("train.grow_at needs increasing numbers above 0, such as [0.25,0.5]")
        if model.layers % 2 ** len(points):
            raise ValueError(
                f"train.grow_at begins with 1/{2 ** len(points)} of the layers: set model.layers "
                f"to a multiple of {2 ** len(points)}, not {model.layers}"
            )
        if model.ffn_every > 1 or model.mixer == "fourier-hybrid":
            raise ValueError(
                "train.grow_at copies layers, and needs all alike: set model.ffn_every=1 and "
                "a model.mixer other than fourier-hybrid"
            )
        if model.pool_at:
            raise ValueError("train.grow_at and model.pool_at do not go together: leave one out")
        if self.train.latest is not None:
            raise ValueError("train.grow_at and train.latest do not go together: leave one out")
        if self.adapts or self.compute.fp8 == "on":
            raise ValueError(
                "train.grow_at needs a model from scratch and no 8-bit products: leave it out, or "
                "set compute.fp8=off"
            )

    def _check_lengths(self) -> None:
        points, length = self.train.lengthen_at, self.data.row_length
        if list(points) != sorted(points) or 0.0 in points:
            raise ValueError(
                "train.lengthen_at needs increasing numbers above 0, such as [0.1,0.5]"
            )
        if length % self.pieces_at(0.0) or length // self.pieces_at(0.0) < 8:
            raise ValueError(
                f"train.lengthen_at begins with 1/{self.pieces_at(0.0)} of rows of {length} "
                "tokens, which must be a whole number of at least 8: list fewer points"
            )
        if points and self.train.drop_tokens:
            raise ValueError("train.lengthen_at and train.drop_tokens: leave one of them out")

    def _check_shortcuts(self) -> None:
        train, model = self.train, self.model
        if train.drop_tokens and (
            model.mixer != "attention"
            or model.scope == "local"
            or model.pool_at
            or model.depth < 3
            or self.adapts
        ):
            raise ValueError(
                "train.drop_tokens needs model.mixer=attention, a model.scope other than local, no "
                "model.pool_at, at least 3 layers and a model from scratch: leave it out"
            )
        if (learned := train.learned_passes) is None:
            return
        if learned >= model.passes or not model.residual_scalars or self.adapts:
            raise ValueError(
                f"train.learned_passes={learned} needs model.passes above it, a model from scratch "
                "and model.residual_scalars=true, with which later passes see the embeddings again"
            )

    def _check_scaling(self) -> None:
        train = self.train
        if train.grad_init is None:
            return
        if self.adapts or self.compute.fp8 == "on" or train.grow_at or train.learned_passes:
            raise ValueError(
                "train.grad_init needs a model from scratch with all of its layers, and second "
                "derivatives: leave it out, or leave out compute.fp8, train.grow_at and "
                "train.learned_passes"
            )

    def _check_objective(self) -> None:
        name, train = self.objective.name, self.train
        if name == "masked":
            return
        if (
            self.adapts
            or train.drop_tokens
            or train.learned_passes
            or self.loss.name == "embedding"
        ):
            raise ValueError(
                f"objective.name={name} needs a model from scratch, no train.drop_tokens, no "
                "train.learned_passes and a loss.name other than embedding: leave these out"
            )
        if name in ("script", "contrast", "electra") and train.early_stop is not None:
            raise ValueError(
                "train.early_stop is a cross-entropy: leave it out with this objective"
            )
        if name == "causal-first" and self.model.mixer.startswith("fourier"):
            raise ValueError(
                f"model.mixer={self.model.mixer} mixes the whole row: set objective.name=masked"
            )
        if isinstance(self.objective, ElectraConfig):
            self._check_electra(self.objective)
        if name == "causal-first" and self.model.pool_at:
            raise ValueError(
                "model.pool_at merges pairs of tokens, one of which is to be predicted from the "
                "other: set objective.name=masked"
            )
        if name == "contrast" and any(length % 2 for length in self.lengths()):
            raise ValueError(
                "objective.name=contrast halves rows: set data.row_length to an even number, and "
                "leave out some of train.lengthen_at"
            )

        if self.batch.adaptive is not None and self.batch.ramp_quantum % self.rows_compared():
            raise ValueError(
                "batch.adaptive must not part rows that are compared: set batch.quantum to a "
                f"multiple of objective.rows={self.rows_compared()}"
            )

    def _check_electra(self, objective: ElectraConfig) -> None:
        try:
            ModelConfig.model_validate(dict(objective.generator_of(self.model)))
        except ValidationError as error:
            # Its keys are the generator's here, for which nothing else can be set.
            why, _, _ = error.errors()[0]["msg"].removeprefix("Value error, ").partition(":")
            raise ValueError(
                f"objective.generator={objective.generator:g} of model.width={self.model.width} "
                f"makes no generator ({why.replace('model.', '')}): set another "
                "objective.generator"
            ) from None
        for rate, length in product(self.masking.rates(), self.lengths()):
            chosen = max(1, round(rate * length))
            if objective.masks(chosen) == chosen:
                raise ValueError(
                    f"masking {rate:g} of {length} tokens leaves none to replace: raise "
                    "masking.rate, or lower objective.masked"
                )

    def generator(self) -> ModelConfig | None:
        """What learns beside the model, and replaces tokens; None if nothing does."""
        if not isinstance(self.objective, ElectraConfig):
            return None
        return self.objective.generator_of(self.model)

    def rows_compared(self) -> int:
        """How many rows of an update its loss compares with one another; 1 if none."""
        return self.objective.rows if isinstance(self.objective, ContrastConfig) else 1

    def outside_rules(self) -> str | None:
        """Why the run does not count by docs/rules.md; None if it does, for all that it says."""
        name = self.objective.name
        return None if name == "masked" else f"objective.name={name}: not of masked tokens alone"

    def mask_rate_at(self, u: float) -> float:
        """Share of positions to predict in an update at progress u; 1 for the next token of all."""
        causal = isinstance(self.objective, CausalFirstConfig) and u < self.objective.share
        return 1.0 if causal else self.masking.rate_at(u)

    def mask_rates(self) -> list[float]:
        """All rates of a run."""
        return [*self.masking.rates(), *[1.0] * isinstance(self.objective, CausalFirstConfig)]

    def kept(self, predicted: int) -> int | None:
        """How many tokens of a row the middle layers compute, of which so many are predicted."""
        if not self.train.drop_tokens:
            return None
        return max(predicted, round((1.0 - self.train.drop_tokens) * self.data.row_length))

    def dropped_at(self, u: float) -> float:
        """The share of `model.layer_drop` in an update that begins at progress u."""
        return 1.0 - math.exp(-100.0 * u) if self.train.layer_drop_rises else 1.0

    def pieces_at(self, u: float) -> int:
        """Into how many pieces an update that begins at progress u cuts each row."""
        return 1 << sum(u < point for point in self.train.lengthen_at)

    def lengths(self) -> list[int]:
        """All lengths of the rows that updates have, the longest first."""
        parts = {self.pieces_at(u) for u in (*self.train.lengthen_at, 0.0)}
        return [self.data.row_length // pieces for pieces in sorted(parts)]

    def layers_at(self, u: float) -> int:
        """Layers in use in an update that begins at progress u."""
        return self.model.layers >> sum(u < point for point in self.train.grow_at)

    def grown(self) -> RunConfig:
        """The same with all layers from the beginning."""
        train = self.train.model_copy(update={"grow_at": ()})
        return self.model_copy(update={"train": train})

    def state_per_parameter(self) -> int:
        """Most numbers kept for each parameter besides the weight and its gradient."""
        train = self.train
        copies = 0 if train.latest is None else train.latest.count
        copies += (train.average is not None) + (train.sharpness is not None)
        copies += 2 * self.measures_curvature(0) + (self.batch.adaptive is not None)
        return self.optim.state_per_parameter + copies

    def measures_curvature(self, number: int) -> bool:
        """Whether update `number` has a second pass for an optimizer that needs curvature."""
        every = self.optim.curvature_every if isinstance(self.optim, LibraryConfig) else None
        return every is not None and number % every == 0

    def passes_per_update(self, number: int | None = None) -> float:
        """How many times an update computes gradients for its rows; None means on average."""
        if self.train.sharpness is not None:
            return 2.0
        if number is not None or not isinstance(self.optim, LibraryConfig):
            return 1.0 + (number is not None and self.measures_curvature(number))
        return 1.0 + 1.0 / (self.optim.curvature_every or math.inf)

    def most_tokens(self, rows: float | None) -> float:
        """The most tokens the run may read from a corpus with this many rows; inf if unlimited.

        Args:
            rows: None if there is no corpus yet.
        """
        if self.budget.most_epochs is None or rows is None:
            return math.inf
        return self.budget.most_epochs * rows * self.data.row_length

    def checkpoint_every(self) -> float:
        """Seconds between checkpoints; see `TrainConfig.checkpoint_seconds`."""
        seconds, limit = self.train.checkpoint_seconds, self.budget.limit
        return min(seconds, max(60.0, limit.limit / 4)) if limit.kind == "time" else seconds

    def identity(self) -> str:
        """Hash of what determines the result: all but `compute`, `description` and `Divergence`."""
        kept = self.model_dump(mode="json", exclude={"compute", "description"})
        del kept["train"]["divergence"]
        if self.adapts is None:  # runs of earlier versions have no such key
            del kept["adapts"]
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]

    def without_folders(self) -> dict[str, Any]:
        """The values as JSON for sharing, with paths on this machine reduced to file names."""
        values = self.model_dump(mode="json")
        for source, shown in zip(self.data.sources, values["data"]["sources"], strict=True):
            if source.is_remote:  # without a password or a signature
                shown["path"] = without_secrets(source.path)
            if source.is_on_disk:
                shown["path"] = Path(source.path).name
            if source.suite is not None:
                shown["suite"] = Path(source.suite).name
        clean = self.data.clean
        if clean.downstream is not None:
            suites = [suite.without_folders() for suite in clean.downstream]
            values["data"]["clean"]["downstream"] = suites
        for section, key in (
            (values["tokenizer"], "file"),
            (values["data"]["clean"], "function"),
            (values["data"]["clean"], "entities"),
        ):
            if section.get(key) is not None:
                section[key] = Path(section[key]).name
        return values
