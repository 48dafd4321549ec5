"""A run's configuration: frozen models, read strictly, checked before anything is made.

A recipe is a YAML file of these sections; `key.path=value` overrides change single values. The
resolved configuration is saved with the run, and its hash is the run's identity. `ComputeConfig`
is left out of the hash: it changes speed, and results only as rounding does. What follows from the
device by the rules of `crammed.sizing` is resolved before the hash is taken.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from crammed.budget import Account, Budget
from crammed.errors import InputError
from crammed.schedule import Fraction, OpenFraction, Schedule, Triangle

PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Beta = Annotated[float, Field(ge=0.0, lt=1.0)]
Names = Annotated[tuple[str, ...], Field(strict=False)]


class Section(BaseModel):
    """Base of the sections: frozen, no unknown keys, no silent conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)


class BudgetConfig(Section):
    """What the run may spend, and which accounts of time count."""

    limit: str = "24h"
    charge: Annotated[tuple[Account, ...], Field(strict=False, min_length=1)] = (
        "compile",
        "data_wait",
        "step",
        "checkpoint",
        "log",
        "lost",
    )

    @field_validator("limit")
    @classmethod
    def _parses(cls, limit: str) -> str:
        try:
            Budget.parse(limit)
        except InputError as error:
            raise ValueError(str(error)) from error
        return limit


TextDocuments = Literal["blank-line", "line", "file"]
Ordering = Literal["sentence-length", "common-first", "rare-first", "word-length", "fragments"]


class SourceConfig(Section):
    """One source of documents; a bare word in a list of sources stands for its `path`."""

    path: str
    """A file, a folder, a glob, `-` (standard input), `python-docs`, or `hub:NAME`."""
    name: str | None = None
    """What reports call it; the last part of `path` if left out."""
    documents: TextDocuments | None = None
    """What one document of a .txt file is; `data.documents` if left out."""
    text_field: str | None = None
    """The field or column that holds the text; `data.text_field` if left out."""
    where: dict[str, Names] = {}
    """Keep records whose field (dotted: meta.pile_set_name) has one of these values."""
    weight: PositiveFloat = 1.0
    """How often each document is packed: 2.5 is twice, and half of them a third time."""
    max_characters: PositiveInt | None = None
    """Read no more than this."""

    @property
    def is_on_disk(self) -> bool:
        """Whether `path` names files."""
        return self.path not in ("-", "python-docs") and not self.path.startswith("hub:")


class CleanConfig(Section):
    """Which documents stay; `crammed.data.clean` has the steps in their order."""

    unicode: bool = True
    """Bring text into normal form C and remove control characters."""
    min_characters: PositiveInt = 1
    max_characters: PositiveInt | None = None
    gopher: bool = False
    """Gopher's quality rules (Rae et al. 2021, table A1)."""
    c4: bool = False
    """C4's quality rules (Raffel et al. 2020, section 2.2)."""
    downstream: str | None = None
    """A folder of GLUE tasks: drop documents that hold one of their sentences."""
    exact: bool = True
    """Drop documents whose text occurred before."""
    near: OpenFraction | None = None
    """Drop documents whose word 5-grams overlap an earlier document's by this Jaccard index."""
    substring: Annotated[int, Field(ge=20)] | None = None
    """Cut out passages of this many bytes or more that occurred before (Lee et al. 2022)."""
    max_tokens_per_character: PositiveFloat | None = None
    """The paper's compressibility filter: drop a document with this many or more (section 4.4)."""


class DataConfig(Section):
    """From sources to packed rows."""

    sources: Annotated[tuple[SourceConfig, ...], Field(strict=False)] = ()
    documents: TextDocuments = "blank-line"
    """What one document of a .txt file is."""
    text_field: str = "text"
    """The field of a JSON line, or the column of a table, that holds the text."""
    unreadable: Literal["stop", "skip"] = "stop"
    """Whether a damaged file ends the preparation, or is named, counted and left out."""
    clean: CleanConfig = CleanConfig()
    heldout_fraction: Annotated[float, Field(gt=0.0, lt=0.5)] = 0.004
    """Share of the characters to hold out, by hash of the document."""
    heldout_rows: PositiveInt = 2000
    """Hold out at least this many rows, but never more than 5 % of the characters for it."""
    row_length: Annotated[int, Field(ge=8)] = 128
    """Tokens of one row."""
    cls: bool = False
    """Begin every document with [CLS]; it always ends with [SEP]."""
    orders: Annotated[tuple[Ordering, ...], Field(strict=False)] = ()
    """Orders of the rows to store; random order needs no storing."""

    @field_validator("sources", mode="before")
    @classmethod
    def _words_are_paths(cls, sources: Any) -> Any:
        if not isinstance(sources, list | tuple):
            return sources
        return [{"path": each} if isinstance(each, str) else each for each in sources]


class TokenizerConfig(Section):
    """Trained on the corpus, or brought along as `file`."""

    kind: Literal["wordpiece", "bpe", "unigram"] = "wordpiece"
    vocab_size: Annotated[int, Field(ge=64)] = 32768
    lowercase: bool = True
    strip_accents: bool = True
    ascii_only: bool = False
    """Drop every character outside ASCII (after accents are stripped)."""
    train_words: PositiveInt = 16_000_000
    """Train on at most this many words' occurrences; more are thinned evenly."""
    file: str | None = None
    """A tokenizer.json, or a Hugging Face folder with one, instead of training."""


class ModelConfig(Section):
    """The encoder; `crammed.model.encoder` says what each choice does."""

    layers: PositiveInt = 16
    width: PositiveInt = 768
    head_dim: PositiveInt = 64
    ffn_ratio: PositiveFloat = 4.0
    """Width of the first feed-forward product over `width`; a gate halves what comes out of it."""
    gated: bool = True
    activation: Literal["gelu", "gelu_tanh", "relu", "relu2", "silu"] = "gelu"
    norm: Literal["pre", "post"] = "pre"
    norm_eps: PositiveFloat = 1e-12
    norm_bias: bool = True
    embedding_norm: bool = True
    first_attention_norm: bool = True
    """Whether layer 0 norms the input of its attention once more after the embedding norm."""
    final_norm: bool = True
    linear_bias: bool = False
    qkv_bias: bool = False
    positions: Literal["none", "learned", "sinusoidal", "scaled-sinusoidal", "rotary"] = "rotary"
    rotary_theta: PositiveFloat = 10000.0
    max_length: PositiveInt = 128
    """Longest input; the number of rows of a position table."""
    token_types: Annotated[int, Field(ge=0)] = 0
    head_transform: bool = False
    """Dense layer, activation and norm before the decoder."""
    decoder_bias: bool = False
    dropout: OpenFraction = 0.0
    """Dropout in pretraining."""
    ffn_dropout: Literal["residual", "hidden"] = "residual"
    """Where the feed-forward part drops: its output (BERT) or its hidden layer (ModernBERT)."""
    init_std: PositiveFloat = 0.02
    zero_outputs: bool = False
    """Begin with zeros in the last matrix of attention and feed-forward, so that every layer begins
    as the identity."""
    classifier: Literal["pooler", "head-transform"] = "pooler"
    """What stands between the first token and the classifier: dense and tanh, or the MLM head."""
    pooler_width: PositiveInt | None = 1024
    """Width of the pooler's dense layer; null means `width`."""

    @property
    def heads(self) -> int:
        """Attention heads."""
        return self.width // self.head_dim

    @property
    def ffn_width(self) -> int:
        """Rows of the first feed-forward matrix, both halves of a gate included."""
        return round(self.width * self.ffn_ratio)

    @property
    def ffn_hidden(self) -> int:
        """Width between the two feed-forward products."""
        return self.ffn_width // 2 if self.gated else self.ffn_width

    @model_validator(mode="after")
    def _shapes_fit(self) -> ModelConfig:
        if self.width % self.head_dim:
            raise ValueError(f"width {self.width} is not a multiple of head_dim {self.head_dim}")
        if self.ffn_width < 1 or (self.gated and self.ffn_width % 2):
            raise ValueError(
                f"ffn_ratio gives {self.ffn_width} features, which a gate cannot halve"
            )
        if self.positions == "rotary" and self.head_dim % 2:
            raise ValueError(f"rotary positions need an even head_dim, not {self.head_dim}")
        if self.classifier == "head-transform" and not self.head_transform:
            raise ValueError("classifier head-transform needs head_transform: true")
        if self.norm == "post" and self.final_norm:
            raise ValueError("a post-norm encoder ends in a norm already: set final_norm: false")
        return self


class MaskingConfig(Section):
    """Which positions are predicted: a fixed number a row, rounded from the rate."""

    rate: PositiveFloat = 0.25
    final_rate: PositiveFloat | None = None
    """Rate at the end of the run, reached in `stages` steps; null keeps `rate`."""
    stages: Annotated[int, Field(ge=2)] = 4
    corruption: Literal["80-10-10", "all-mask"] = "80-10-10"

    @model_validator(mode="after")
    def _rates(self) -> MaskingConfig:
        if max(self.rate, self.final_rate or 0.0) > 0.9:
            raise ValueError("rates above 0.9 leave nothing to predict from")
        return self


class OptimConfig(Section):
    """The optimizer. Weight decay is on matrices, embeddings and the position scale only."""

    name: Literal["adamw", "adam", "muon"] = "adamw"
    """`adam` adds the decay to the gradient, `adamw` decouples it; `muon` takes the matrices of the
    layers, and AdamW the rest."""
    lr: PositiveFloat = 1e-3
    beta1: Beta = 0.9
    beta2: Beta = 0.98
    eps: PositiveFloat = 1e-12
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01
    clip: PositiveFloat | None = 0.5
    """Largest L2 norm of the whole gradient; null never clips."""
    matrix_lr: PositiveFloat = 1e-2
    """Peak learning rate of `muon`; `lr` is AdamW's."""
    momentum: Beta = 0.95
    """Of `muon`."""


class BatchConfig(Section):
    """Rows of one update."""

    rows: PositiveInt = 8192
    ramp: Fraction = 0.6
    """Share of the budget after which `rows` is reached; 0 starts there."""
    quantum: PositiveInt | None = None
    """The ramp starts at and grows by this many rows; null is a 64th of `rows`."""

    @property
    def ramp_quantum(self) -> int:
        """`quantum` resolved: 128 rows at the paper's 8192, and the same shape at any other."""
        return self.quantum or max(1, self.rows // 64)


class OrderConfig(Section):
    """In which order training reads the rows of the corpus."""

    by: Literal["random"] | Ordering = "random"
    share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Follow `by` for this share of the rows; the rest of them comes in random order."""
    reshuffle: bool = True
    """Whether later epochs come in a new random order, or all as the first."""


class EarlyStop(Section):
    """Give up when the training loss is above `loss` once a share `after` is spent."""

    after: PositiveFloat = 0.125
    loss: PositiveFloat = 6.0


class TrainConfig(Section):
    """The training loop."""

    log_seconds: PositiveFloat = 2.0
    checkpoint_seconds: PositiveFloat = 600.0
    heldout_every: PositiveFloat | None = 0.1
    """Measure held-out loss each time this share of the budget is spent; null: at the end only."""
    early_stop: EarlyStop | None = None


class ComputeConfig(Section):
    """Where and how to compute: changes speed, and results by no more than rounding does, once what
    follows from budget and device is resolved."""

    device: Literal["auto", "cuda", "mps", "cpu"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of activations in pretraining; weights, gradients and optimizer stay float32."""
    fp8: Literal["on", "off"] = "off"
    """Multiply in 8 bits in the layers; NVIDIA GPUs of capability 8.9 and higher."""
    compile: Literal["auto", "on", "off"] = "auto"
    """With torch.compile; `auto` does on GPUs, and on CPUs in runs long enough for it to pay."""
    kernels: Literal["compiler", "triton"] = "compiler"
    """What does norms, gates and the loss: what torch.compile makes, or `crammed.kernels`."""
    recompute: Literal["auto", "on", "off"] = "auto"
    """Compute the layers' activations again for the gradients instead of keeping them; `auto`
    where memory is short."""
    microbatch_rows: PositiveInt | None = None
    """Rows of one forward and backward pass; null leaves it to the device."""
    threads: PositiveInt | None = None
    """CPU threads; null leaves it to PyTorch."""
    workers: PositiveInt | None = None
    """Processes that prepare data, or fine-tune on a CPU; null is one a core."""
    engine: Literal["processes", "ray"] = "processes"
    """Prepare with processes of this machine, or on a Ray cluster."""


class Protocol(Section):
    """How fine-tuning goes: one set of hyperparameters for every task (section 5).

    The learning rate warms up and decays within each task's own steps; the last epoch counts.
    """

    seeds: PositiveInt = 5
    epochs: PositiveInt = 5
    batch: PositiveInt = 16
    lr: PositiveFloat = 4e-5
    beta1: Beta = 0.9
    beta2: Beta = 0.98
    eps: PositiveFloat = 1e-6
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    clip: PositiveFloat | None = None
    """Largest L2 norm of the whole gradient; null never clips."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """Shape of the learning rate after its warm-up; cosine and linear end at zero."""
    warmup: OpenFraction = 0.1
    dropout: OpenFraction = 0.1
    """Of models of ours; Hugging Face models have what their configuration says."""
    max_length: PositiveInt = 128
    """Tokens of a sequence; a model for shorter ones has its own limit."""


class FinetuneConfig(Protocol):
    """What a run is evaluated on once it is trained, and by which protocol."""

    tasks: Names = ()


class RunConfig(Section):
    """Everything that decides what a run computes."""

    recipe: str
    description: str = ""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    corpus: str | None = None
    """Hash of the corpus that was given ready; null prepares `data.sources`."""
    budget: BudgetConfig = BudgetConfig()
    data: DataConfig = DataConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelConfig = ModelConfig()
    masking: MaskingConfig = MaskingConfig()
    optim: OptimConfig = OptimConfig()
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
                f"data.row_length {length} is longer than model.max_length {self.model.max_length}"
            )
        if self.finetune.max_length > self.model.max_length:
            raise ValueError(
                f"finetune.max_length {self.finetune.max_length} is longer than "
                f"model.max_length {self.model.max_length}"
            )
        for rate in (self.masking.rate, self.masking.final_rate):
            if rate is not None and round(rate * length) < 1:
                raise ValueError(f"masking {rate} of {length} tokens predicts none of them")
        return self

    def identity(self) -> str:
        """Hash of what decides the result: everything but `compute` and the description."""
        kept = self.model_dump(mode="json", exclude={"compute", "description"})
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]
