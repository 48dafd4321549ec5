"""The encoder's transformers classes, for models that no built-in class can represent.

Copied next to an exported model together with the encoder's files; needs torch and transformers
4.48 or newer. Each class has the inputs and outputs of its BERT counterpart in transformers, except
for the input `head_mask`. Without `position_ids`, a text begins at position 0 behind padding, so it
has the same outputs whichever side it is padded on.

Shapes: B rows, S tokens, D width, V vocabulary, C choices.
"""

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)

# Old versions of transformers copy only the files that this one imports itself.
from .attention import Attention  # noqa: F401
from .blocks import Embedding, Linear
from .classifiers import SequenceClassifier, TokenClassifier, first_token
from .encoder import Encoder, MaskedLM
from .feedforward import FeedForward  # noqa: F401
from .funnel import Funnel  # noqa: F401
from .layer import Layer  # noqa: F401
from .mixers import MIXERS  # noqa: F401
from .positions import Positions  # noqa: F401


class CrammedConfig(PretrainedConfig):
    """The fields of the encoder; the exported config.json contains all of them."""

    model_type = "crammed"
    attribute_map = {  # noqa: RUF012
        "hidden_size": "width",
        "num_hidden_layers": "layers",
        "num_attention_heads": "heads",
        "intermediate_size": "ffn_hidden",
        "initializer_range": "init_std",
    }

    def __init__(self, vocab_size: int = 32768, **fields: Any) -> None:
        self.vocab_size = vocab_size
        super().__init__(**fields)

    def of_encoder(self) -> SimpleNamespace:
        """The fields under the names that the encoder uses.

        Here `max_length` is the longest input; in transformers it is a text-generation option.
        """
        return SimpleNamespace(**{**vars(self), "max_length": self.max_position_embeddings})


class CrammedPreTrainedModel(PreTrainedModel):
    """Base class: loading, saving, initialisation, and the encoder."""

    config_class = CrammedConfig
    base_model_prefix = "base"
    # An export holds these for the classes that read them; others load it without a report.
    _keys_to_ignore_on_load_unexpected = (r"^decoder_bias$", r"^output\.", r"^head\.", r"^pooler\.")
    _no_split_modules = ("Layer",)  # older versions refuse device_map="auto" without it
    supports_gradient_checkpointing = True
    gradient_checkpointing = False
    _supports_sdpa = True

    def __init__(self, config: CrammedConfig, make: Callable[..., nn.Module], *sizes: int) -> None:
        """Adopt the parts of the model that `make` builds, which may be the encoder alone."""
        super().__init__(config)
        model = make(config.of_encoder(), config.vocab_size, *sizes)
        encoder = model if make is Encoder else model.encoder
        for part in model.modules():
            # Tools such as `quantize_dynamic` look for this very class, and change its weights;
            # the decoder reads those of `widen` itself.
            if type(part) is Linear and part is not encoder.widen:
                part.__class__ = nn.Linear
        parts = {"encoder": model} if make is Encoder else dict(model.named_children())
        for name, part in parts.items():
            setattr(self, name, part)

    def _init_weights(self, module: nn.Module) -> None:
        # Include submodules, as older exports do, so that a seed gives the same head in both.
        for part in module.modules():
            if type(part) is nn.Linear:
                Linear.start(part, self.config.init_std)
            elif hasattr(part, "start"):
                part.start(self.config.init_std)
        if type(module) is nn.Embedding:  # what transformers makes for a vocabulary of another size
            nn.init.normal_(module.weight, 0.0, self.config.init_std)

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.tokens = value

    def resize_token_embeddings(self, *args: Any, **options: Any) -> nn.Module:
        """As in transformers; the value embeddings of new tokens begin at 0."""
        embeddings = super().resize_token_embeddings(*args, **options)
        if self.config.value_embeddings:
            self.encoder.values = _resized(self.encoder.values, embeddings.num_embeddings)
        return embeddings

    def encode(
        self,
        given: tuple[Tensor | None, ...],
        output_attentions: bool | None,
        output_hidden_states: bool | None,
    ) -> BaseModelOutput:
        """Hidden states [B, S, D], of every layer on request.

        `hidden_states` holds each layer's input, then the last layer's output after the final norm;
        the layers of a funnel, which compute fewer tokens, count as one, without attentions.
        `attentions` are computed separately from the forward pass, without dropout.

        Args:
            given: token ids, mask, types and positions [B, S], and embeddings [B, S, D].

        Raises:
            ValueError: neither or both of token ids and embeddings are given, a model with value
                embeddings is given no ids, or the input is too long for the model.
        """
        input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds = given
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        tokens = self.encoder.tokens(input_ids) if inputs_embeds is None else inputs_embeds
        # With device_map="auto", each module moves its inputs; the rest stays with ids and mask.
        device = tokens.device if input_ids is None else input_ids.device
        tokens = tokens.to(device)
        mask = _shown(attention_mask)
        if position_ids is None:
            position_ids = self._positions(tokens.shape[1], mask)
        x, *given = self.encoder.prepare(tokens, mask, token_type_ids, input_ids, position_ids)
        states, attentions = [x], []
        for layer in self.encoder.steps():
            shares = layer.probabilities(x, *given) if output_attentions else None
            if shares is not None:  # some mixers are not attention
                attentions.append(shares)
            if self.gradient_checkpointing and self.training:
                x = self._gradient_checkpointing_func(layer.__call__, x, *given)
            else:
                x = layer(x, *given)
            states.append(x)
        states[-1] = x = self.encoder.final_norm(x).to(device)
        return BaseModelOutput(
            last_hidden_state=x,
            hidden_states=tuple(states) if output_hidden_states else None,
            attentions=tuple(attentions) or None,
        )

    def _positions(self, length: int, mask: Tensor | None) -> Tensor | None:
        """The positions [B, S] of tokens that are given without; None is 0 to S - 1."""
        longest = self.config.max_position_embeddings
        if length > longest:
            fault = (
                f"an input has {length} tokens, and the model was trained on at most {longest}: "
                "shorten it, such as by truncation=True in the tokenizer"
            )
            if self.encoder.position_encoding.bounded:
                raise ValueError(fault)
            if not torch.compiler.is_compiling():
                warnings.warn(fault, stacklevel=4)
        if mask is None:
            return None
        return (torch.arange(length, device=mask.device) - first_token(mask)).clamp(min=0)

    def give(
        self, kind: type, encoded: BaseModelOutput, return_dict: bool | None, **values: Any
    ) -> Any:
        """The values as an output of class `kind`, or as a tuple."""
        output = kind(**values, hidden_states=encoded.hidden_states, attentions=encoded.attentions)
        named = self.config.return_dict if return_dict is None else return_dict
        return output if named else output.to_tuple()


class CrammedModel(CrammedPreTrainedModel):
    """Hidden states."""

    def __init__(self, config: CrammedConfig) -> None:
        super().__init__(config, Encoder)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> BaseModelOutput | tuple[Any, ...]:
        given = input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds
        encoded = self.encode(given, output_attentions, output_hidden_states)
        return self.give(
            BaseModelOutput, encoded, return_dict, last_hidden_state=encoded.last_hidden_state
        )


class _WithHead(CrammedPreTrainedModel):
    """Logits from hidden states, and their loss if there are labels.

    Attributes:
        output_kind: class of the output.
        of_choices: whether rows are [B, C, S], one sequence per choice, and logits [B, C].
    """

    output_kind: type
    of_choices = False

    def pooled(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """What the logits are of, from hidden states [B, S, D] and their mask [B, S]."""
        return hidden

    def logits_of(self, hidden: Tensor) -> Tensor:
        """The logits for what `pooled` returns."""
        raise NotImplementedError

    def loss_of(self, logits: Tensor, labels: Tensor) -> Tensor:
        """A mean over the labels that are not -100."""
        return _cross_entropy(logits, labels)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        given = input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds
        if self.of_choices:
            given = tuple(None if each is None else each.flatten(0, 1) for each in given)
        encoded = self.encode(given, output_attentions, output_hidden_states)
        logits = self.logits_of(self.pooled(encoded.last_hidden_state, _shown(given[1])))
        if self.of_choices:
            logits = logits.view(-1, (inputs_embeds if input_ids is None else input_ids).shape[1])
        loss = None if labels is None else self.loss_of(logits, labels.to(logits.device))
        return self.give(self.output_kind, encoded, return_dict, loss=loss, logits=logits)


class CrammedForMaskedLM(_WithHead):
    """Logits over the vocabulary; the decoder is the token embedding itself."""

    output_kind = MaskedLMOutput
    start = MaskedLM.start
    logits_of = MaskedLM.decode
    table, read = MaskedLM.table, MaskedLM.read

    def __init__(self, config: CrammedConfig) -> None:
        super().__init__(config, MaskedLM)
        self.output = getattr(self, "output", None)
        self.decoder_bias = None
        if config.decoder_bias:
            self.decoder_bias = nn.Parameter(torch.empty(config.vocab_size))
        self.post_init()

    def resize_token_embeddings(self, *args: Any, **options: Any) -> nn.Module:
        """As in transformers; the decoder's biases, and rows of its own, of new tokens are 0."""
        embeddings = super().resize_token_embeddings(*args, **options)
        if self.output is not None:
            self.output = _resized(self.output, embeddings.num_embeddings)
        if (bias := self.decoder_bias) is not None:
            resized = F.pad(bias.detach(), (0, embeddings.num_embeddings - len(bias)))
            self.decoder_bias = nn.Parameter(resized, requires_grad=bias.requires_grad)
        return embeddings


class CrammedForSequenceClassification(_WithHead):
    """Logits over classes of texts."""

    output_kind = SequenceClassifierOutput
    pooled = SequenceClassifier.pooled
    logits_of = SequenceClassifier.classify

    def __init__(self, config: CrammedConfig) -> None:
        super().__init__(config, SequenceClassifier, config.num_labels)
        self.pooling, self.classifier_kind = config.pooling, config.classifier
        self.post_init()

    def loss_of(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of `config.problem_type`, which follows from the labels where it is not set."""
        problem = self.config.problem_type
        if problem is None and self.config.num_labels == 1:
            problem = "regression"
        elif problem is None and labels.is_floating_point():
            problem = "multi_label_classification"
        if problem == "regression":
            return F.mse_loss(logits.float().reshape(labels.shape), labels.float())
        if problem == "multi_label_classification":
            return F.binary_cross_entropy_with_logits(logits.float(), labels.float())
        return _cross_entropy(logits, labels)


class CrammedForMultipleChoice(_WithHead):
    """Logits over choices [B, C], one sequence per choice: ids, mask and types are [B, C, S]."""

    output_kind = MultipleChoiceModelOutput
    of_choices = True
    pooled = SequenceClassifier.pooled
    logits_of = SequenceClassifier.classify

    def __init__(self, config: CrammedConfig) -> None:
        super().__init__(config, SequenceClassifier, 1)
        self.pooling, self.classifier_kind = config.pooling, config.classifier
        self.post_init()


class CrammedForTokenClassification(_WithHead):
    """Logits over classes at every token."""

    output_kind = TokenClassifierOutput
    logits_of = TokenClassifier.classify

    def __init__(self, config: CrammedConfig) -> None:
        super().__init__(config, TokenClassifier, config.num_labels)
        self.post_init()


class CrammedForQuestionAnswering(CrammedPreTrainedModel):
    """Logits for the start and the end of an answer, each [B, S]."""

    def __init__(self, config: CrammedConfig) -> None:
        super().__init__(config, TokenClassifier, 2)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> QuestionAnsweringModelOutput | tuple[Any, ...]:
        given = input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds
        encoded = self.encode(given, output_attentions, output_hidden_states)
        start, end = TokenClassifier.classify(self, encoded.last_hidden_state).unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = (_place_loss(start, start_positions) + _place_loss(end, end_positions)) / 2
        return self.give(
            QuestionAnsweringModelOutput,
            encoded,
            return_dict,
            loss=loss,
            start_logits=start,
            end_logits=end,
        )


def _shown(mask: Tensor | None) -> Tensor | None:
    """The mask as bool; a row that is all padding counts as text, as in BERT, and stays finite."""
    if mask is None:
        return None
    mask = mask.bool()
    return mask | ~mask.any(-1, keepdim=True)


def _resized(table: Embedding, rows: int) -> Embedding:
    """The table cut to so many rows, or lengthened by rows of 0."""
    weight = F.pad(table.weight.detach(), (0, 0, 0, rows - len(table.weight)))
    return Embedding.from_pretrained(weight, freeze=not table.weight.requires_grad)


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean over all labels [...] that are not -100, of logits [..., classes]."""
    return F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten())


def _place_loss(logits: Tensor, places: Tensor) -> Tensor:
    """Cross-entropy of positions [B] or [B, 1] in rows [B, S], ignoring truncated positions."""
    length = logits.shape[1]
    places = places.flatten().clamp(0, length).to(logits.device)
    return F.cross_entropy(logits.float(), places, ignore_index=length)
