"""The encoder that a run adapts: found, checked, loaded, and exported in its own class."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from torch import Tensor, nn

from crammed.adaptation.new_words import add_words, embed_words
from crammed.adaptation.ours import OWN_CODE, adopted, give_back, same_architecture
from crammed.adaptation.shape import COUNTED, outline
from crammed.config import ModelConfig, RunConfig, TokenizerConfig
from crammed.config.corpus import LEAST_TOKENS
from crammed.data.corpus import Corpus
from crammed.data.heldout import heldout_texts
from crammed.data.tokenization.tokenizer import Specials, load_tokenizer
from crammed.errors import InputError
from crammed.evaluation.backbones.huggingface import HuggingFaceBackbone, HuggingFaceMaskedLM
from crammed.evaluation.backbones.huggingface_files import (
    is_tuned,
    is_weights,
    loading,
    model_files,
    single_precision,
    truncate_at,
)
from crammed.evaluation.backbones.spec import BackboneSpec
from crammed.export.huggingface import (
    Exported,
    checked,
    comes_with_our_code,
    importable,
    write_custom_code,
)
from crammed.files.folders import new_folder
from crammed.files.hashes import json_hash
from crammed.files.scratch import scratch_folder
from crammed.files.writing import read_json, write_json
from crammed.keys import key
from crammed.model.encoder import MaskedLM
from crammed.model.trained import EXPORT
from crammed.runs.directory import read_config
from crammed.runs.summary import Spent, read_summary


@dataclass(frozen=True)
class Original:
    """An encoder with a masked-language-model class in transformers, and its tokenizer.

    Attributes:
        folder: its files.
        ours: whether it comes with code, which is that of this package.
        earlier: what training it was charged, if the folder is the export of one of our runs.
        new_words: those that its tokenizer has been given.
    """

    backbone: HuggingFaceBackbone
    folder: Path
    ours: bool
    earlier: Spent | None
    new_words: tuple[str, ...] = ()

    @classmethod
    def find(cls, spec: str) -> Original:
        """The encoder of a run, a Hugging Face folder or a name on the hub.

        Raises:
            InputError: there is none, its kind fills no masks, its tokenizer has no mask, or the
                result of the run is damaged.
        """
        name, folder = BackboneSpec(spec).files()
        model_files(folder)  # refuses what must not be opened
        ours = comes_with_our_code(folder)
        if not ours:
            _refuse_older_code(folder)
        _refuse_other_kinds(name, folder, trust=ours)
        backbone = HuggingFaceBackbone(name, folder, trust_remote_code=False)
        if backbone.mask is None or backbone.sep is None:
            raise InputError(
                f"the tokenizer of {name} has no mask token or no separator, so there is nothing "
                "to learn from: name a masked language model"
            )
        if getattr(backbone.tokenizer, "backend_tokenizer", None) is None:
            raise InputError(
                f"the tokenizer of {name} is written in Python, which is too slow to prepare text "
                "with: save it as a fast tokenizer (tokenizer.json)"
            )
        return cls(backbone, folder, ours, _charged(folder))

    def with_words(self, words: tuple[str, ...]) -> Original:
        """The same encoder, whose tokenizer has more words from now on."""
        add_words(self.backbone.tokenizer, words)
        return replace(self, new_words=words)

    @property
    def name(self) -> str:
        """The name that reports show."""
        return self.backbone.name

    @property
    def sha256(self) -> str:
        """Digest of configuration, weights and tokenizer."""
        own = self.backbone.sha256
        return json_hash([own, self.new_words]) if self.new_words else own

    @cached_property
    def exact(self) -> ModelConfig | None:
        """Our configuration of it; None if our engine does not compute what it computes."""
        dropouts = set(self.backbone.encoder_dropouts().values())
        if len(dropouts) > 1:  # and which is where, we do not know
            return None
        return same_architecture(self.backbone.masked_lm_to_train(0, None)[0])

    @cached_property
    def stated_dropout(self) -> float:
        """The largest dropout that its configuration says."""
        return max(self.backbone.encoder_dropouts().values(), default=0.0)

    @cached_property
    def dropout(self) -> float:
        """The dropout to train it with, unless another is asked for.

        That of the run, if the folder is the export of one of ours that began from scratch: the
        configuration there says what is usual in fine-tuning.
        """
        if self.earlier is None:
            return self.stated_dropout
        return read_config(self.folder.resolve().parent).model.dropout

    @cached_property
    def shape(self) -> dict[str, Any]:
        """Its configuration in ours, or what the run counts its cost with, by dotted key."""
        backbone = self.backbone
        if self.exact is None:
            longest, dropout = backbone.max_length, self.dropout
            values = outline(backbone.outline(), backbone.config, longest, dropout)
        else:
            exact = {**self.exact.model_dump(mode="json"), "dropout": self.dropout}.items()
            values = {"compute.compile": "auto", **{f"model.{key}": value for key, value in exact}}
        ids = backbone.tokenizer.get_vocab().values()
        of_tokenizer = {"file": str(self.folder), "vocab_size": max(LEAST_TOKENS, 1 + max(ids))}
        return {**values, **{f"tokenizer.{key}": value for key, value in of_tokenizer.items()}}

    @cached_property
    def recomputes(self) -> bool:
        """Whether its layers can recompute their activations for the gradients."""
        theirs = self.backbone.outline()
        return self.exact is not None or bool(theirs.supports_gradient_checkpointing)

    @cached_property
    def lacks(self) -> set[str]:
        """Names of the weights that begin at random, because the folder does not have them."""
        return self.backbone.masked_lm_to_train(0, None)[1]

    def model(self, config: RunConfig) -> HuggingFaceMaskedLM:
        """The model to train, on the CPU, in training mode.

        Raises:
            InputError: transformers has not loaded the weights that the folder holds.
        """
        own = config.model.dropout == self.stated_dropout
        dropout = None if own else config.model.dropout
        seed = key(config.seed, "initialise")
        model = self.backbone.masked_lm_to_train(seed, dropout)[0].train()
        self._check_weights(model.model.state_dict())
        if not self.new_words:
            return model
        drawn = key(config.seed, "new words")
        embed_words(model.model, self.backbone.tokenizer, self.new_words, drawn)
        return HuggingFaceMaskedLM(model.model)  # whose products may be others now

    def is_ours(self, config: RunConfig) -> bool:
        """Whether our engine trains it in a run with this configuration.

        A run of an earlier version, which counted with an outline, began with theirs.
        """
        exact = self.exact
        return exact is not None and config.model == exact.with_dropout(config.model.dropout)

    def own(self, config: RunConfig) -> MaskedLM | None:
        """The model to train in our engine, on the CPU; None if theirs is trained.

        Raises:
            InputError: as `model`.
        """
        return adopted(self.model(config), config.model) if self.is_ours(config) else None

    def _check_weights(self, loaded: dict[str, Tensor]) -> None:
        """Refuse weights that were lost, as RoBERTa's ``lm_head.bias`` is before transformers 4.50.

        Such a model would begin worse than it is, and could not be exported.
        """
        for file in self.folder.glob("*.safetensors"):
            with safe_open(file, "pt") as saved:
                for name in loaded.keys() & saved.keys():
                    weight = saved.get_tensor(name).to(loaded[name].dtype)
                    if not torch.equal(weight, loaded[name]):
                        raise InputError(
                            f"this version of transformers loads {name} of {self.name} wrongly: "
                            "pip install --upgrade transformers"
                        )

    def tokenizer_config(self, folder: Path, config: TokenizerConfig) -> TokenizerConfig:
        """How text is prepared with its tokenizer, which is kept in `folder`."""
        shutil.rmtree(folder, ignore_errors=True)  # a command that was killed may have had another
        with new_folder(folder) as aside:
            self.backbone.tokenizer.save_pretrained(aside)
        return config.model_copy(update={"file": str(folder)})

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer, as corpora have it."""
        with scratch_folder() as place:
            self.backbone.tokenizer.save_pretrained(place / "tokenizer")
            return load_tokenizer(place / "tokenizer")

    def check_corpus(self, corpus: Corpus) -> None:
        """Refuse a corpus that another tokenizer has made.

        Raises:
            InputError: it is one.
        """
        sample = next(heldout_texts(corpus.heldout), "")[:2000]
        theirs, own = corpus.tokenizer, self.tokenizer
        if (
            theirs.get_vocab() != own.get_vocab()
            or theirs.encode(sample).ids != own.encode(sample).ids
        ):
            mend = f": name the text with --data, or prepare it with tokenizer.file={self.folder}"
            if self.new_words:
                mend = " with its new words: name the text with --data"
            raise InputError(
                f"{corpus.path} was prepared with another tokenizer than that of {self.name}{mend}"
            )

    def export(self, model: nn.Module, config: RunConfig, out: Path, card: str) -> Exported:
        """Write the trained model to the new folder `out`, in its own class with its tokenizer.

        Args:
            model: as from `own` or `model`, with this configuration.

        Raises:
            CrammedError: what transformers loads from there computes something else.
        """
        trained: Any = model
        if isinstance(model, MaskedLM):
            give_back(model, config.model, trained := self.model(config))
        theirs = trained.model
        for name, value in self.backbone.encoder_dropouts().items():
            setattr(theirs.config, name, value)
        with new_folder(out) as folder:
            with loading(self.name, "model"):
                weights = {**theirs.state_dict(), **self._pooler(theirs.base_model_prefix)}
                theirs.save_pretrained(folder, state_dict=weights)
            mode = (folder / "config.json").stat().st_mode
            for file in folder.glob("*.safetensors"):  # readable only by its owner so far
                file.chmod(mode)
            for file in model_files(self.folder):
                if not is_weights(file) and file.name != "config.json" and file.suffix != ".py":
                    shutil.copyfile(file, folder / file.name)
            if self.new_words:
                self._save_tokenizer(folder)
            if is_tuned(self.folder):
                truncate_at(self.backbone.max_length, folder)
            if self.ours:
                write_custom_code(folder)
            # transformers 5 leaves out what it knows by other names, and 4 knows by these alone.
            saved = read_json(folder / "config.json") or {}
            own = single_precision(self.folder)
            if not self.ours:  # the classes of transformers need no code
                own.pop("auto_map", None)
            write_json(folder / "config.json", {**own, **saved})
            (folder / "README.md").write_text(card, "utf-8")
            difference = self._difference(model, folder)
        return Exported(out, type(theirs).__name__, (), difference)

    def _save_tokenizer(self, folder: Path) -> None:
        """Write the tokenizer with its new words, of the class that it had.

        transformers 5 names one of its own, which transformers 4 does not know.
        """
        file = folder / "tokenizer_config.json"
        own = read_json(file) or {}
        self.backbone.tokenizer.save_pretrained(folder)
        saved = read_json(file) or {}
        if saved.get("tokenizer_class") == "TokenizersBackend":
            for key in ("backend", "is_local", "extra_special_tokens"):
                saved.pop(key, None)
            kept = {"tokenizer_class": "PreTrainedTokenizerFast", **own}
            names = ("tokenizer_class", "extra_special_tokens")
            write_json(file, {**saved, **{key: kept[key] for key in names if key in kept}})

    def _pooler(self, base: str) -> dict[str, Tensor]:
        """The weights of the pooler, which a masked language model leaves out; none without one."""
        kind = "AutoModelForSequenceClassification" if self.ours else "AutoModel"
        prefix = "" if self.ours else f"{base}."
        given = self.backbone.pretrained(kind).items()
        return {f"{prefix}{name}": w for name, w in given if name.startswith("pooler.")}

    def _difference(self, model: nn.Module, folder: Path) -> float:
        """The largest difference in logits between a model and what a folder holds, on the CPU.

        A GPU may round products to a few bits, differently in the two. The two rows have different
        lengths, so that padding is part of the check.
        """
        with importable(folder) as place:
            saved: Any = HuggingFaceBackbone(self.name, place, trust_remote_code=False)
            other = saved.masked_lm(torch.device("cpu"))
        length = min(32, self.backbone.max_length)
        specials = Specials.of(self.tokenizer)
        draw = torch.Generator().manual_seed(0)
        ids = torch.randint(len(self.tokenizer.get_vocab()), (2, length), generator=draw)
        ids[ids == specials.pad] = specials.mask
        ids[:, 0], ids[:, -1] = specials.cls, specials.sep
        ids[1, length // 2 :] = specials.pad
        everywhere = torch.arange(length).expand(2, length)
        mask = everywhere < torch.tensor([[length], [length // 2]])
        with torch.inference_mode():
            ours, theirs = (m(ids, everywhere, mask) for m in (model.cpu().eval(), other))
        return checked((theirs - ours)[mask])


def _charged(folder: Path) -> Spent | None:
    """What the run was charged that this folder is the export of; None if there is no such run."""
    run, ours = folder.resolve().parent, folder.resolve().name == EXPORT
    summary = read_summary(run) if ours and (run / "config.json").exists() else None
    return None if summary is None else summary.spent()


def _refuse_older_code(folder: Path) -> None:
    """Refuse a run's export with code of ours that is not that of this version."""
    run, config = folder.parent, read_json(folder / "config.json") or {}
    exported = folder.name == EXPORT and (run / "final").is_dir()
    if exported and config.get("model_type") == OWN_CODE:
        raise InputError(
            f"{folder} was written by another version, or changed since: move it away, and write "
            f"it anew with crammed export {run} --to {folder}"
        )


def _refuse_other_kinds(name: str, folder: Path, *, trust: bool) -> None:
    """Refuse a model that transformers has no masked language model of, or only with a decoder.

    A model without attention, such as FNet, is refused as well.
    """
    import transformers

    with loading(name, "configuration"):
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=trust)
    fills = trust or type(config) in transformers.MODEL_FOR_MASKED_LM_MAPPING
    decodes = getattr(config, "is_encoder_decoder", False) or getattr(config, "is_decoder", False)
    if decodes or not fills:
        raise InputError(
            f"{name} is a {config.model_type} model, which does not fill masks in text: name a "
            "masked language model, such as BERT, RoBERTa, ModernBERT or DeBERTa"
        )
    if lacks := [each for each in COUNTED if not hasattr(config, each)]:
        raise InputError(
            f"{name} is a {config.model_type} model, which has no {lacks[0]}, with which the cost "
            "of training is counted: name another, such as BERT, RoBERTa, ModernBERT or DeBERTa"
        )
