"""A run's configuration: frozen models, read strictly, validated before anything is written.

A recipe is a YAML file of these sections, and `key.path=value` overrides change single values. The
resolved configuration is saved with the run, and its hash is the run's identity. `ComputeConfig` is
left out of the hash, since it affects speed, and results only through rounding. Values that depend
on the device by the rules of `crammed.rules.sizing` are resolved before hashing.

Nothing here imports torch, so that data-preparation processes start fast.
"""

from crammed.config.base import Names as Names
from crammed.config.base import PositiveFloat as PositiveFloat
from crammed.config.base import PositiveInt as PositiveInt
from crammed.config.base import Section as Section
from crammed.config.corpus import CleanConfig as CleanConfig
from crammed.config.corpus import DataConfig as DataConfig
from crammed.config.corpus import DownstreamConfig as DownstreamConfig
from crammed.config.corpus import FileFormat as FileFormat
from crammed.config.corpus import MixConfig as MixConfig
from crammed.config.corpus import Ordering as Ordering
from crammed.config.corpus import RepeatedConfig as RepeatedConfig
from crammed.config.corpus import SourceConfig as SourceConfig
from crammed.config.corpus import TextDocuments as TextDocuments
from crammed.config.corpus import TokenizerConfig as TokenizerConfig
from crammed.config.finetuning import FinetuneConfig as FinetuneConfig
from crammed.config.finetuning import Probe as Probe
from crammed.config.finetuning import Protocol as Protocol
from crammed.config.model import ModelConfig as ModelConfig
from crammed.config.optim import OptimConfig as OptimConfig
from crammed.config.run_config import RunConfig as RunConfig
from crammed.config.training import BatchConfig as BatchConfig
from crammed.config.training import ComputeConfig as ComputeConfig
from crammed.config.training import EarlyStop as EarlyStop
from crammed.config.training import GradInitConfig as GradInitConfig
from crammed.config.training import LatestConfig as LatestConfig
from crammed.config.training import MaskingConfig as MaskingConfig
from crammed.config.training import OrderConfig as OrderConfig
from crammed.config.training import TrainConfig as TrainConfig
