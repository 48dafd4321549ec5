"""Small models of transformers that the tests make themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from crammed.config import ModelConfig
from crammed.data.tokenization.tokenizer import SPECIALS
from crammed.model.encoder import MaskedLM, initialise
from crammed.model.trained import TrainedModel, trained_model
from support.text import documents

FAMILIES = ("bert", "roberta", "modernbert", "distilbert")
HEADS = (
    "Model",
    "ModelForMaskedLM",
    "ModelForSequenceClassification",
    "ModelForTokenClassification",
    "ModelForQuestionAnswering",
    "ModelForMultipleChoice",
)
"""The classes of transformers that load an export, each without its ``Auto``."""
ROBERTA = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
SHAPE: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def word_pieces(*, framed: bool = True) -> Tokenizer:
    """A small tokenizer of the kind that BERT has."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=150, special_tokens=list(SPECIALS))
    tokenizer.train_from_iterator(documents(60), trainer)
    if framed:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
        )
    return tokenizer


def byte_pairs() -> Tokenizer:
    """A small tokenizer of the kind that RoBERTa has."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=350, special_tokens=list(ROBERTA), initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(documents(60), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return tokenizer


def change(file: Path, values: dict[str, Any]) -> None:
    found = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**found, **values}))


def save_tokenizer(folder: Path, tokenizer: Tokenizer, **more: Any) -> None:
    """Save a tokenizer as transformers does."""
    from transformers import PreTrainedTokenizerFast

    parts = ("pad", "unk", "cls", "sep", "mask")
    names = SPECIALS
    if tokenizer.token_to_id(SPECIALS[0]) is None:
        names = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
    tokens = {f"{part}_token": name for part, name in zip(parts, names, strict=True)}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    settings = {"model_input_names": inputs, **tokens, **more}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **settings).save_pretrained(folder)


def configuration(family: str, vocab_size: int) -> Any:
    """A small configuration of one of `FAMILIES`, for 40 tokens."""
    import transformers

    common: dict[str, Any] = {"vocab_size": vocab_size, "max_position_embeddings": 40}
    if family == "distilbert":
        common |= {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48}
        return transformers.DistilBertConfig(**common)
    common |= {**SHAPE, "intermediate_size": 48}
    if family == "roberta":
        common |= {"max_position_embeddings": 42, "type_vocab_size": 1, "pad_token_id": 1}
        return transformers.RobertaConfig(**common)
    if family == "modernbert":
        return transformers.ModernBertConfig(**common, local_attention=8, pad_token_id=0)
    return transformers.BertConfig(**common)


def save_model(folder: Path, family: str, kind: str = "AutoModelForMaskedLM") -> Path:
    """Save a model of one of `FAMILIES`, with weights far from initial ones, and its tokenizer."""
    import transformers

    tokenizer = byte_pairs() if family == "roberta" else word_pieces()
    save_tokenizer(folder, tokenizer, model_max_length=40)
    torch.manual_seed(0)
    config = configuration(family, tokenizer.get_vocab_size())
    model = getattr(transformers, kind).from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return folder


def untrained(tokenizer: Tokenizer, config: ModelConfig, seed: int = 0) -> TrainedModel:
    """A model with weights far from their initial values."""
    model = MaskedLM(config, tokenizer.get_vocab_size())
    draw = torch.Generator().manual_seed(seed)
    initialise(model, 0.2, draw)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=draw))
    return trained_model(model, config, 32, tokenizer)


def from_auto(folder: Path, head: str, seed: int = 1, **options: Any) -> Any:
    """The model in a folder as the class ``AutoHEAD`` loads it; the seed is for new weights."""
    import transformers

    torch.manual_seed(seed)
    loader = getattr(transformers, f"Auto{head}")
    return loader.from_pretrained(folder, trust_remote_code=True, **options)
