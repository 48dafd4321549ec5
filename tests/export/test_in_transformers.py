"""Exports of every recipe go through what people do with a model in transformers.

The installed transformers is any that is allowed: `make test-all` tries the oldest and the newest,
with the packages of the extra `exports`, without which a few of these tests are skipped.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from crammed.export.huggingface import export
from crammed.export.onnx import write_onnx
from crammed.rules.recipe import recipe_names
from support.models import HEADS, untrained, word_pieces
from support.text import sentences
from support.variants import configuration

TEXTS = ["The red fox counts seven lanterns.", "Two boats at night."]
NEEDED = "{} is not installed: pip install 'crammed[exports]', or make test-all"


class Recipe(NamedTuple):
    """A recipe's export, and how transformers loads it."""

    folder: Path
    format: str
    trust: dict[str, Any]

    def load(self, head: str, folder: Path | None = None, **options: Any) -> Any:
        import transformers

        torch.manual_seed(1)  # for the weights of new heads
        loader = getattr(transformers, f"Auto{head}")
        return loader.from_pretrained(folder or self.folder, **self.trust, **options).eval()

    def batch(self, head: str = "Model") -> dict[str, Tensor]:
        """Two rows of different lengths, or three choices of each."""
        rows: dict[str, Tensor] = dict(self.tokenizer()(TEXTS, return_tensors="pt", padding=True))
        if head == "ModelForMultipleChoice":
            return {name: torch.stack([each] * 3, 1) for name, each in rows.items()}
        return rows

    def tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.folder, **self.trust)

    def has(self, head: str) -> bool:
        """Whether transformers has such a class for the export; custom code brings each."""
        import transformers

        known = getattr(transformers, f"Auto{head}")._model_mapping.keys()
        return self.format == "custom" or type(self.load("Model").config) in known


@pytest.fixture(scope="module", params=recipe_names())
def recipe(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    final = untrained(word_pieces(), configuration(request.param))
    done = export(final, tmp_path_factory.mktemp(request.param) / "export")
    trust = {"trust_remote_code": True} if done.format == "custom" else {}
    return Recipe(done.path, done.format, trust)


def outputs(model: Any, batch: dict[str, Tensor]) -> tuple[Tensor, ...]:
    with torch.inference_mode():
        given: tuple[Tensor, ...] = model(**batch).to_tuple()
    return given


def same(model: Any, weights: dict[str, Tensor], but: str = "nothing") -> bool:
    """Whether a model has these weights, bit for bit, leaving out names with a word in them."""
    own = model.state_dict()
    return own.keys() == weights.keys() and all(
        torch.equal(own[name], weight) for name, weight in weights.items() if but not in name
    )


@pytest.mark.parametrize("head", HEADS)
def test_what_is_saved_loads_again(tmp_path: Path, recipe: Recipe, head: str) -> None:
    if not recipe.has(head):
        pytest.skip(f"this transformers has no {head} for {recipe.format}")
    model = recipe.load(head)
    weights, expected = model.state_dict(), outputs(model, recipe.batch(head))
    folder = recipe.folder
    for name in ("again", "and-again"):
        model.save_pretrained(tmp_path / name)
        code = {file.name: file.read_text("utf-8") for file in folder.glob("*.py")}
        folder = tmp_path / name
        assert {file.name: file.read_text("utf-8") for file in folder.glob("*.py")} == code
        model = recipe.load(head, folder)
        assert same(model, weights)
        # A product may round otherwise where a weight lies elsewhere in memory.
        torch.testing.assert_close(
            outputs(model, recipe.batch(head)), expected, rtol=1e-5, atol=1e-6
        )
    assert same(recipe.load("Model", folder), recipe.load("Model").state_dict(), but="pooler")


def test_biases_in_attention_alone_are_modernbert_s(tmp_path: Path) -> None:
    """Which has one behind attention, too; for every head that transformers puts on it."""
    import transformers

    config = configuration("crammed", attention_start="neighbours")
    assert not config.linear_bias
    final = untrained(word_pieces(), config)
    done = export(final, tmp_path / "export")
    assert (done.format, done.difference is not None and done.difference < 1e-5) == (
        "modernbert",
        True,
    )
    made = Recipe(done.path, done.format, {})
    ours = final.weights["encoder.layers.1.attention.qkv.bias"]
    for head in filter(made.has, HEADS):
        loader = getattr(transformers, f"Auto{head}")
        model, info = loader.from_pretrained(done.path, output_loading_info=True)
        assert all("classifier" in key or "qa" in key for key in info["missing_keys"]), head
        layer = model.base_model.layers[1].attn
        assert torch.equal(layer.Wqkv.bias, ours)
        assert not layer.Wo.bias.any()


TASKS = {
    "fill-mask": ("ModelForMaskedLM", ["Two [MASK] at night."]),
    "feature-extraction": ("Model", TEXTS),
    "text-classification": ("ModelForSequenceClassification", TEXTS),
    "token-classification": ("ModelForTokenClassification", TEXTS),
    "question-answering": ("ModelForQuestionAnswering", None),
}


@pytest.mark.parametrize("task", TASKS)
def test_pipelines(tmp_path: Path, recipe: Recipe, task: str) -> None:
    from transformers import pipelines

    head, texts = TASKS[task]
    if task not in pipelines.SUPPORTED_TASKS:
        pytest.skip(f"this transformers has no pipeline for {task}")
    if not recipe.has(head):
        pytest.skip(f"this transformers has no {head} for {recipe.format}")
    recipe.load(head).save_pretrained(tmp_path / "model")
    recipe.tokenizer().save_pretrained(tmp_path / "model")
    make: Any = pipelines.pipeline
    run = make(task, str(tmp_path / "model"), device="cpu", **recipe.trust)
    if texts is None:
        answer = run(question="Who counts?", context=TEXTS[0])
        assert answer["answer"] in TEXTS[0]
        return
    found = run(texts)
    assert len(found) == (5 if task == "fill-mask" else len(texts))
    if task == "feature-extraction":
        alone = recipe.tokenizer()(TEXTS[0], return_tensors="pt")
        expected = outputs(recipe.load("Model"), alone)[0]
        torch.testing.assert_close(torch.tensor(found[0]), expected, rtol=1e-4, atol=1e-5)
    else:
        flat = [each for part in found for each in (part if isinstance(part, list) else [part])]
        assert all(0 < each["score"] <= 1 for each in flat)


class Rows(torch.utils.data.Dataset[dict[str, Any]]):
    """Sentences in three classes."""

    def __init__(self, tokenizer: Any) -> None:
        self._rows = tokenizer(sentences(16), truncation=True)
        self._size = len(self._rows["input_ids"])

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, n: int) -> dict[str, Any]:
        return {**{name: each[n] for name, each in self._rows.items()}, "label": n % 3}


def trainer(recipe: Recipe, out: Path, model: Any, **options: Any) -> Any:
    """A Trainer on the CPU that says nothing."""
    import transformers

    settings = transformers.TrainingArguments(
        str(out),
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        per_device_train_batch_size=4,
        **options,
    )
    rows = Rows(recipe.tokenizer())
    return transformers.Trainer(
        model, settings, train_dataset=rows, processing_class=recipe.tokenizer()
    )


def test_the_trainer_saves_and_goes_on(tmp_path: Path, recipe: Recipe) -> None:
    pytest.importorskip("accelerate", reason=NEEDED.format("accelerate"))
    head = "ModelForSequenceClassification"
    options: dict[str, Any] = {
        "save_steps": 2,
        "gradient_checkpointing": True,
        "learning_rate": 1e-2,
    }
    options["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    first = trainer(recipe, tmp_path, recipe.load(head, num_labels=3), max_steps=4, **options)
    first.train()
    trained = first.model.eval()
    again = recipe.load(head, tmp_path / "checkpoint-4")
    assert same(again, trained.state_dict())
    assert not same(recipe.load(head, num_labels=3), trained.state_dict())
    torch.testing.assert_close(
        outputs(again, recipe.batch()), outputs(trained, recipe.batch()), rtol=1e-5, atol=1e-6
    )
    # With this PyTorch, transformers 4.48 does not read the numbers that it wrote itself.
    (tmp_path / "checkpoint-2" / "rng_state.pth").unlink()
    second = trainer(recipe, tmp_path, recipe.load(head, num_labels=3), max_steps=4, **options)
    done = second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert done.global_step == 4


def test_the_trainer_takes_means_of_losses(tmp_path: Path, recipe: Recipe) -> None:
    """Where gradients are added up, too: the loss is divided by the number of passes."""
    pytest.importorskip("accelerate", reason=NEEDED.format("accelerate"))
    if recipe.format != "custom":
        pytest.skip("in transformers 5.23 that is not so for ModernBERT")
    model = recipe.load("ModelForSequenceClassification", num_labels=3)
    with torch.no_grad():
        for parameter in model.classifier.parameters():
            parameter.zero_()
    options: dict[str, Any] = {
        "gradient_accumulation_steps": 4,
        "learning_rate": 0.0,
        "max_steps": 1,
    }
    loss = trainer(recipe, tmp_path, model, save_strategy="no", **options).train().training_loss
    assert loss == pytest.approx(math.log(3), rel=1e-4)


def test_sentence_transformers(tmp_path: Path, recipe: Recipe) -> None:
    name = "sentence_transformers"
    library = pytest.importorskip(name, reason=NEEDED.format("sentence-transformers"))
    model = library.SentenceTransformer(str(recipe.folder), device="cpu", **recipe.trust)
    assert model.max_seq_length == 32
    expected = model.encode(TEXTS, convert_to_tensor=True)
    hidden = outputs(recipe.load("Model"), recipe.batch())[0]
    kept = recipe.batch()["attention_mask"][..., None]
    torch.testing.assert_close(expected, (hidden * kept).sum(1) / kept.sum(1), rtol=1e-4, atol=1e-5)
    model.save_pretrained(str(tmp_path / "saved"))
    again = library.SentenceTransformer(str(tmp_path / "saved"), device="cpu", **recipe.trust)
    torch.testing.assert_close(
        (again.encode(TEXTS, convert_to_tensor=True),), (expected,), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("int8", [False, True])
def test_onnx(tmp_path: Path, recipe: Recipe, int8: bool) -> None:
    runtime = pytest.importorskip("onnxruntime", reason=NEEDED.format("onnxruntime"))
    pytest.importorskip("onnxscript", reason=NEEDED.format("onnxscript"))
    model = recipe.load("ModelForMaskedLM")
    rows = recipe.batch()
    difference = write_onnx(model, tmp_path, [*rows], int8=int8)
    assert difference < 2.0 if int8 else difference < 1e-4
    assert [each.name for each in tmp_path.iterdir()] == ["model.onnx"]
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    found = session.run(["logits"], {name: each.numpy() for name, each in rows.items()})[0]
    kept = rows["attention_mask"].bool()
    (expected,) = outputs(model, rows)
    tolerance = 2.0 if int8 else 1e-4
    torch.testing.assert_close(
        torch.from_numpy(found)[kept], expected[kept], rtol=0, atol=tolerance
    )


def test_a_funnel_as_onnx(tmp_path: Path) -> None:
    """For rows of odd lengths, too, which `write_onnx` tries."""
    from transformers import AutoModelForMaskedLM

    for name in ("onnxruntime", "onnxscript"):
        pytest.importorskip(name, reason=NEEDED.format(name))
    config = configuration(dropout=0.0, layers=5, pool_at=(1, 2))
    folder = export(untrained(word_pieces(), config), tmp_path / "export").path
    model = AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True).eval()
    assert write_onnx(model, tmp_path, ["input_ids", "attention_mask"], int8=False) < 1e-4
