"""Any Hugging Face encoder as a backbone."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from crammed.data.tokenization.encoding import text_only
from crammed.data.tokenization.tokenizer import check_frame
from crammed.errors import InputError
from crammed.evaluation.backbones.base import SparseMaskedLM, check_length, digest
from crammed.evaluation.backbones.huggingface_files import (
    is_tuned,
    is_weights,
    loading,
    loading_tokenizer,
    model_files,
)
from crammed.evaluation.backbones.huggingface_weights import check_numbers, check_weights
from crammed.evaluation.backbones.tokens import Tokenized, by_library, by_python, plain_ids
from crammed.export.huggingface import comes_with_our_code
from crammed.tasks.rows import Texts

_UNLIMITED = 10**6
"""Tokenizers without a length limit report a number far above this."""
_DEFAULT_LENGTH, _LEAST_LENGTH = 512, 8
_DROPOUT = re.compile(r".*(dropout(_prob|_rate)?|_pdrop)")
_SINGLE = {"torch_dtype": torch.float32}
"""transformers 5, which takes `dtype` under this name too, else rounds as config.json says."""
_INFORMING = {
    "output_loading_info": True,
    "ignore_mismatched_sizes": True,
    "return_dict": True,
}
"""The configuration may ask for tuples, and transformers names weights that do not fit it."""
_OF_HEADS = re.compile("classif|qa_")
"""What tells keys of dropout in the heads of tasks from those in the encoder."""
WRAPPED = "model"
"""Begins the names of the weights of a classifier of transformers in one of `classifier`."""


class HuggingFaceBackbone:
    """A transformers model; `crammed.evaluation.backbones.base.Backbone` documents the members.

    Args:
        folder: contains config.json, the weights and the tokenizer.

    Attributes:
        config: as transformers reads it.

    Raises:
        InputError: one of these is missing or damaged, or needs something that is not installed or
            not allowed.
    """

    def __init__(self, name: str, folder: Path, *, trust_remote_code: bool) -> None:
        import transformers

        self.name = name
        files = model_files(folder)
        self.sha256 = digest(files)
        self.shape_sha256 = digest(file for file in files if not is_weights(file))
        self._folder = folder.absolute()  # weights are loaded when they are needed
        self._trust = {"trust_remote_code": trust_remote_code or comes_with_our_code(folder)}
        self._kept: dict[str, dict[str, Tensor]] = {}
        with loading(name, "configuration"):
            self.config: Any = transformers.AutoConfig.from_pretrained(folder, **self._trust)
        self.config.return_dict = True
        with loading_tokenizer(name, folder):
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **self._trust)
        base, lost = self._load("AutoModel")
        if lost := {key for key in lost if "pooler" not in key}:
            raise InputError(
                f"the weights of {name} do not match its config.json: they lack {_some(lost)}"
            )
        check_numbers(name, files, base)
        self.parameters = self._count(base)
        self.width: int | None = getattr(self.config, "hidden_size", None)
        self.max_length = self.trained_length = self._longest(base)
        with loading(name, "tokenizer"):  # transformers looks up special tokens only here
            self._check_tokenizer(base)
            self.pad: int = self.tokenizer.pad_token_id
            self.mask: int | None = self.tokenizer.mask_token_id
            self.sep: int | None = self.tokenizer.sep_token_id
            specials = frozenset(self.tokenizer.all_special_ids)
            typed = "token_type_ids" in self.tokenizer.model_input_names
        if self.sep is None:
            self.sep = self.tokenizer.eos_token_id
        self.specials = specials - {self.tokenizer.unk_token_id}
        self._library: Tokenizer | None = getattr(self.tokenizer, "backend_tokenizer", None)
        if self._library is not None:
            self._library.no_truncation()
            self._library.no_padding()
        takes = inspect.signature(base.forward).parameters
        if "attention_mask" not in takes:
            raise InputError(
                f"{name} is a {self.config.model_type} model, which takes no attention_mask, so "
                "what it computes of a text would depend on padding: name another model"
            )
        self._types = (
            typed and "token_type_ids" in takes and getattr(self.config, "type_vocab_size", 2) > 1
        )

    def tokenize(self, texts: Sequence[Texts], max_length: int, *, words: bool) -> Tokenized:
        check_length(max_length, self)
        about: Any = {"types": self._types, "words": words, "filler": self.pad}
        with loading(self.name, "tokenizer"):  # a damaged one may fail at some texts alone
            if self._library is None:
                return by_python(self.tokenizer, texts, max_length, **about)
            unknown = self.tokenizer.unk_token
            return by_library(self._library, texts, max_length, unknown=unknown, **about)

    def composes(self, text: str) -> bool:
        return False

    @cached_property
    def _of_text(self) -> Tokenizer:
        assert self._library is not None
        return text_only(self._library)

    def plain_ids(self, text: str) -> Sequence[int]:
        with loading(self.name, "tokenizer"):
            if self._library is None:
                return plain_ids(self.tokenizer, text)
            ids: list[int] = self._of_text.encode(text, add_special_tokens=False).ids
            return ids

    def encoder(self, untrained: int | None = None) -> nn.Module:
        if untrained is None:
            model, _ = self._load("AutoModel")
        else:
            model = self._untrained("AutoModel", self.config, untrained)
        return _Wrapped(model.eval(), _HIDDEN)

    def encoder_to_train(self, seed: int, dropout: float) -> nn.Module:
        """The encoder with this dropout, called like that of `encoder`, on the CPU.

        Args:
            seed: decides weights that the folder does not have, such as a pooler's.
        """
        model, _ = self._load("AutoModel", seed, **dict.fromkeys(self.encoder_dropouts(), dropout))
        return _Wrapped(model, _HIDDEN)

    def encoder_ends(self) -> nn.Module:
        """As `encoder_ends_to_tune`, with the weights in the folder, in evaluation mode."""
        model, _ = self._load("AutoModel")
        return _Wrapped(model.eval(), _ends, output_hidden_states=True)

    def encoder_ends_to_tune(self, seed: int, *, trained: bool, dropout: float = 0.0) -> nn.Module:
        model = self._to_tune("AutoModel", seed, trained, dropout)
        return _Wrapped(model, _ends, output_hidden_states=True)

    def classifier(
        self, outputs: int, seed: int, *, trained: bool, every_token: bool, dropout: float = 0.0
    ) -> nn.Module:
        if not every_token and getattr(self.config, "summary_type", None) == "last":
            raise InputError(
                f"a classifier of {self.name} reads the last position, as XLNet's does, which is "
                "padding here: name --protocol linear-probe, or evaluate another model"
            )
        kind = _classifier_class(every_token)
        return _Wrapped(self._to_tune(kind, seed, trained, dropout, num_labels=outputs))

    def _to_tune(self, kind: str, seed: int, trained: bool, dropout: float, **settings: int) -> Any:
        config = deepcopy(self.config)
        config.update({**dict.fromkeys(self.dropouts(), dropout), **settings})
        model = self._untrained(kind, config, seed)
        if trained:
            if kind not in self._kept:
                self._kept[kind] = self.pretrained(kind)
            result = model.load_state_dict(self._kept[kind], strict=False)
            assert not result.unexpected_keys, result
        return model.train()

    def _untrained(self, kind: str, config: Any, seed: int) -> Any:
        """A model of this class in float32 with random weights."""
        import transformers

        with loading(self.name, "model"), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            model = getattr(transformers, kind).from_config(config, **_SINGLE, **self._trust)
        return model.float()

    def finetuned(self, *, every_token: bool) -> nn.Module:
        """The classifier in the folder, in evaluation mode; called like that of `classifier`.

        Raises:
            InputError: the folder holds an encoder without a classifier.
        """
        model, lost = self._load(_classifier_class(every_token))
        if lost:
            raise InputError(f"{self.name} is not fine-tuned: its weights lack {_some(lost)}")
        return _Wrapped(model.eval())

    def pretrained(self, kind: str) -> dict[str, Tensor]:
        """The weights that a class loads from the folder, except a classifier's last layer."""
        # If the folder holds a classifier, asking for one more label than it has excludes that.
        model, lost = self._load(kind, num_labels=self.config.num_labels + 1)
        return {key: tensor for key, tensor in model.state_dict().items() if key not in lost}

    def dropouts(self) -> dict[str, float]:
        values = self.config.to_dict().items()  # ESM's `token_dropout` is a switch, and no rate
        return {k: v for k, v in values if _DROPOUT.fullmatch(k) and type(v) in (int, float)}

    def encoder_dropouts(self) -> dict[str, float]:
        """The keys of the configuration that are dropout in the encoder, with their values."""
        return {k: v for k, v in self.dropouts().items() if not _OF_HEADS.search(k)}

    def masked_lm_to_train(
        self, seed: int, dropout: float | None
    ) -> tuple[HuggingFaceMaskedLM, set[str]]:
        """The masked language model on the CPU, and the weights that the folder does not have.

        Args:
            seed: decides those, which are random.
            dropout: in place of every dropout of the encoder; None keeps its own.
        """
        more = {} if dropout is None else dict.fromkeys(self.encoder_dropouts(), dropout)
        model, lost = self._load("AutoModelForMaskedLM", seed, **more)
        return HuggingFaceMaskedLM(model), lost

    def masked_lm(self, device: torch.device) -> SparseMaskedLM:
        model, lost = self._load("AutoModelForMaskedLM")
        if lost:
            raise InputError(
                f"{self.name} has no masked-language-model head, which filling gaps, BLiMP and "
                f"held-out loss need: its weights lack {_some(lost)}"
            )
        return HuggingFaceMaskedLM(model.to(device).eval())

    def untrained_masked_lm(self, device: torch.device) -> SparseMaskedLM:
        model = self._untrained("AutoModelForMaskedLM", self.config, 0)
        return HuggingFaceMaskedLM(model.to(device).eval())

    def _load(self, kind: str, seed: int | None = None, **more: Any) -> tuple[Any, set[str]]:
        """A model of this class in float32, and the names of the weights that the folder lacks.

        Args:
            seed: decides those; None leaves them to the state of the generator.
        """
        import transformers

        with loading(self.name, "model"), torch.random.fork_rng(devices=[]):
            if seed is not None:
                torch.default_generator.manual_seed(seed)
            model, info = getattr(transformers, kind).from_pretrained(
                self._folder, **_INFORMING, **more, **_SINGLE, **self._trust
            )
        model = model.float()
        check_weights(self.name, model, info["unexpected_keys"])
        mismatched = {k if isinstance(k, str) else k[0] for k in info["mismatched_keys"]}
        return model, {*info["missing_keys"], *mismatched}

    def _count(self, base: nn.Module) -> int:
        try:
            whole = self.outline()
        except InputError:  # there is no such class for this kind of encoder
            whole = base
        return sum(parameter.numel() for parameter in whole.parameters())

    def outline(self) -> nn.Module:
        """The masked language model without storage for its weights.

        Raises:
            InputError: there is no such class for this kind of encoder.
        """
        import transformers

        with loading(self.name, "model"), torch.device("meta"):
            model: nn.Module = transformers.AutoModelForMaskedLM.from_config(
                self.config, **self._trust
            )
        return model

    def _longest(self, base: nn.Module) -> int:
        """The lowest limit that tokenizer, configuration or position table imposes."""
        known = [getattr(self.config, "max_position_embeddings", None)]
        if not is_tuned(self._folder):
            known.append(self.tokenizer.model_max_length)
        for key, module in base.named_modules():
            if key.endswith("position_embeddings") and isinstance(module, nn.Embedding):
                # RoBERTa's positions begin after the id of its padding token.
                padding = module.padding_idx
                known.append(module.num_embeddings - (0 if padding is None else padding + 1))
        sane = [n for n in known if isinstance(n, int) and 0 < n < _UNLIMITED]
        if (longest := min(sane, default=_DEFAULT_LENGTH)) < _LEAST_LENGTH:
            raise InputError(
                f"{self.name} takes only {longest} tokens at a time, too few for any task: name "
                f"another model, or correct model_max_length in its tokenizer_config.json"
            )
        return longest

    def _check_tokenizer(self, base: Any) -> None:
        vocabulary = set(self.tokenizer.get_vocab().values())
        if not vocabulary - set(self.tokenizer.all_special_ids):
            raise InputError(f"{self._folder} holds no tokenizer (such as tokenizer.json)")
        if self.tokenizer.pad_token_id is None:
            raise InputError(
                f"the tokenizer of {self.name} has no padding token: set pad_token in its "
                "tokenizer_config.json"
            )
        rows = base.get_input_embeddings().num_embeddings
        if max(vocabulary) >= rows:
            raise InputError(
                f"the tokenizer of {self.name} has ids up to {max(vocabulary)}, but the model has "
                f"only {rows} embeddings: restore the tokenizer it was trained with"
            )
        library = getattr(self.tokenizer, "backend_tokenizer", None)
        if library is not None:
            check_frame(library, rows, f"the tokenizer of {self.name}")


def _classifier_class(every_token: bool) -> str:
    return f"AutoModelFor{'Token' if every_token else 'Sequence'}Classification"


_LOGITS, _HIDDEN = attrgetter("logits"), attrgetter("last_hidden_state")


def _ends(outputs: Any) -> Tensor:
    last = outputs.last_hidden_state
    states = outputs.hidden_states or (last,)
    return torch.cat([states[0], last], -1)


class _Wrapped(nn.Module):
    """A transformers model with the call signature of ours, which returns a part of its output."""

    def __init__(
        self, model: nn.Module, part: Callable[[Any], Tensor] = _LOGITS, **more: bool
    ) -> None:
        super().__init__()
        self.model = model
        self._part = part
        self._more = more

    def forward(
        self, ids: Tensor, mask: Tensor | None = None, types: Tensor | None = None
    ) -> Tensor:
        given = torch.ones_like(ids) if mask is None else mask.long()
        extra = {} if types is None else {"token_type_ids": types}
        return self._part(self.model(input_ids=ids, attention_mask=given, **extra, **self._more))


def inner(model: nn.Module) -> Any:
    """The model of transformers in one that `HuggingFaceBackbone` has made."""
    return getattr(model, WRAPPED)


class HuggingFaceMaskedLM(nn.Module):
    """A transformers masked language model that, if possible, decodes only chosen positions."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self._positions: Tensor | None = None
        decoder = model.get_output_embeddings()
        if isinstance(decoder, nn.Module):
            decoder.register_forward_pre_hook(self._pick)

    def forward(self, ids: Tensor, positions: Tensor, mask: Tensor | None = None) -> Tensor:
        given = torch.ones_like(ids) if mask is None else mask.long()
        self._positions = positions
        logits: Tensor = self.model(input_ids=ids, attention_mask=given).logits
        if self._positions is not None:  # the hook was not called: every position was decoded
            logits = _chosen(logits, positions)
        return logits

    def _pick(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """Reduce the decoder's input [B, S, D] to the positions asked for, [B, N, D]."""
        if self._positions is None or inputs[0].ndim != 3:
            return None
        picked = _chosen(inputs[0], self._positions)
        self._positions = None
        return (picked, *inputs[1:])


def _chosen(values: Tensor, positions: Tensor) -> Tensor:
    return values.gather(1, positions[..., None].expand(-1, -1, values.shape[-1]))


def _some(names: set[str]) -> str:
    first = min(names)
    return first if len(names) == 1 else f"{first} and {len(names) - 1} more"
