"""The encoder as transformers sees it, for models that no built-in class holds.

Copied beside an exported model together with the encoder's files; needs torch and transformers.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)

# Old versions of transformers copy only the files that this one imports itself.
from .attention import Attention  # noqa: F401
from .blocks import Block  # noqa: F401
from .encoder import Encoder, MaskedLM, SequenceClassifier, TokenClassifier
from .feedforward import FeedForward  # noqa: F401
from .positions import Positions  # noqa: F401


class CrammedConfig(PretrainedConfig):
    """The fields of the encoder; every one stands in the exported config.json."""

    model_type = "crammed"
    attribute_map = {  # noqa: RUF012
        "hidden_size": "width",
        "num_hidden_layers": "layers",
    }

    def __init__(self, vocab_size: int = 32768, **fields: Any) -> None:
        self.vocab_size = vocab_size
        super().__init__(**fields)

    @property
    def max_length(self) -> int:
        """The encoder's name for it; a plain field of this name is taken by text generation."""
        return self.max_position_embeddings


class CrammedPreTrainedModel(PreTrainedModel):
    """Loading, saving and initialisation."""

    config_class = CrammedConfig
    base_model_prefix = "base"
    _supports_sdpa = True

    def _init_weights(self, module: nn.Module) -> None:
        # With all that is in it, as older exports draw: a seed gives the same head in both.
        for part in module.modules():
            if hasattr(part, "start"):
                part.start(self.config.init_std)


class CrammedModel(CrammedPreTrainedModel):
    """Hidden states."""

    def __init__(self, config: CrammedConfig) -> None:
        super().__init__(config)
        self.encoder = Encoder(config, config.vocab_size)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.tokens

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **_: Any,
    ) -> BaseModelOutput:
        mask = None if attention_mask is None else attention_mask.bool()
        return BaseModelOutput(self.encoder(input_ids, mask, token_type_ids))


class CrammedForMaskedLM(CrammedPreTrainedModel):
    """Logits over the vocabulary; the decoder is the token embedding itself."""

    start = MaskedLM.start

    def __init__(self, config: CrammedConfig) -> None:
        super().__init__(config)
        model = MaskedLM(config, config.vocab_size)
        self.encoder, self.head = model.encoder, model.head
        self.decoder_bias = model.decoder_bias
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.tokens

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **_: Any,
    ) -> MaskedLMOutput:
        mask = None if attention_mask is None else attention_mask.bool()
        hidden = self.encoder(input_ids, mask, token_type_ids)
        logits = F.linear(self.head(hidden), self.encoder.tokens.weight, self.decoder_bias)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        return MaskedLMOutput(loss=loss, logits=logits)


class CrammedForSequenceClassification(CrammedPreTrainedModel):
    """Logits over classes from the first token."""

    def __init__(self, config: CrammedConfig) -> None:
        super().__init__(config)
        model = SequenceClassifier(config, config.vocab_size, config.num_labels)
        self.classifier_kind = model.classifier_kind
        for name, part in model.named_children():
            setattr(self, name, part)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.tokens

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **_: Any,
    ) -> SequenceClassifierOutput:
        mask = None if attention_mask is None else attention_mask.bool()
        logits = SequenceClassifier.forward(self, input_ids, mask, token_type_ids)
        loss = None
        if labels is not None and self.config.num_labels == 1:
            loss = F.mse_loss(logits.squeeze(-1).float(), labels.float())
        elif labels is not None and labels.is_floating_point():
            loss = F.binary_cross_entropy_with_logits(logits.float(), labels)
        elif labels is not None:
            loss = F.cross_entropy(logits.float(), labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


class CrammedForTokenClassification(CrammedPreTrainedModel):
    """Logits over classes at every token."""

    def __init__(self, config: CrammedConfig) -> None:
        super().__init__(config)
        model = TokenClassifier(config, config.vocab_size, config.num_labels)
        for name, part in model.named_children():
            setattr(self, name, part)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.tokens

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **_: Any,
    ) -> TokenClassifierOutput:
        mask = None if attention_mask is None else attention_mask.bool()
        logits = TokenClassifier.forward(self, input_ids, mask, token_type_ids)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        return TokenClassifierOutput(loss=loss, logits=logits)
