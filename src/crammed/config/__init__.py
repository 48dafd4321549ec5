"""A run's configuration: frozen models, read strictly, validated before anything is written.

A recipe is a YAML file of these sections, and `key.path=value` overrides change single values. The
resolved configuration is saved with the run, and its hash is the run's identity. `ComputeConfig` is
left out of the hash, since it affects speed, and results only through rounding. Values that depend
on the device by the rules of `crammed.rules.sizing` are resolved before hashing.

Nothing here imports torch, so that data-preparation processes start fast.
"""

from crammed.config.base import Names, PositiveFloat, PositiveInt, Section
from crammed.config.corpus import (
    CleanConfig,
    DataConfig,
    DownstreamConfig,
    FileFormat,
    MixConfig,
    Ordering,
    RepeatedConfig,
    SourceConfig,
    TextDocuments,
    TokenizerConfig,
)
from crammed.config.finetuning import FinetuneConfig, Probe, Protocol
from crammed.config.model import ModelConfig
from crammed.config.optim import OptimConfig
from crammed.config.run_config import RunConfig
from crammed.config.training import (
    BatchConfig,
    ComputeConfig,
    EarlyStop,
    GradInitConfig,
    LatestConfig,
    MaskingConfig,
    OrderConfig,
    TrainConfig,
)

__all__ = [
    "BatchConfig",
    "CleanConfig",
    "ComputeConfig",
    "DataConfig",
    "DownstreamConfig",
    "EarlyStop",
    "FileFormat",
    "FinetuneConfig",
    "GradInitConfig",
    "LatestConfig",
    "MaskingConfig",
    "MixConfig",
    "ModelConfig",
    "Names",
    "OptimConfig",
    "OrderConfig",
    "Ordering",
    "PositiveFloat",
    "PositiveInt",
    "Probe",
    "Protocol",
    "RepeatedConfig",
    "RunConfig",
    "Section",
    "SourceConfig",
    "TextDocuments",
    "TokenizerConfig",
    "TrainConfig",
]
