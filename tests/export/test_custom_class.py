"""The class that comes with a custom export gives and takes what the classes of BERT do."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from crammed.export.huggingface import export
from support.models import HEADS, from_auto, untrained, word_pieces
from support.variants import configuration

IDS = torch.randint(5, 60, (3, 12), generator=torch.Generator().manual_seed(0))
MASK = (torch.arange(12) < torch.tensor([[12], [7], [3]])).long()
VARIANTS: dict[str, dict[str, Any]] = {
    "crammed-2022": {"decoder_bias": True, "passes": 2},
    "izsak": {"positions": "rotary", "residual_scalars": True},
    "crammed": {
        "positions": "sinusoidal",
        "classifier": "head-transform",
        "qk_norm": "rms",
        "logit_cap": 4.0,
    },
}


@pytest.fixture(scope="module", params=VARIANTS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of each kind of norms, positions and heads."""
    fields = {"dropout": 0.0, **VARIANTS[request.param]}
    final = untrained(word_pieces(), configuration(request.param, **fields))
    done = export(final, tmp_path_factory.mktemp("custom") / "export", "custom")
    return done.path


def load(folder: Path, head: str, **options: Any) -> Any:
    return from_auto(folder, head, dropout=0.0, **options)


def grown(model: Any, folder: Path) -> tuple[int, Tensor, Any]:
    """A model's vocabulary and logits, and the model with seven more tokens, saved and loaded."""
    size = model.config.vocab_size
    with torch.inference_mode():
        before = model(IDS, MASK).logits
    model.resize_token_embeddings(size + 7)
    model.save_pretrained(folder)
    return size, before, load(folder, "ModelForMaskedLM")


def inputs(head: str) -> dict[str, Tensor]:
    rows = {"input_ids": IDS, "attention_mask": MASK}
    if head == "ModelForMultipleChoice":
        return {name: each.expand(2, -1, -1) for name, each in rows.items()}
    return rows


@pytest.mark.parametrize("head", HEADS)
def test_hidden_states_and_attentions_are_given_when_asked_for(folder: Path, head: str) -> None:
    model = load(folder, head)
    rows = 6 if head == "ModelForMultipleChoice" else 3
    with torch.inference_mode():
        plain = model(**inputs(head))
        full = model(**inputs(head), output_hidden_states=True, output_attentions=True)
        unnamed = model(**inputs(head), return_dict=False)
    assert plain.hidden_states is None
    assert plain.attentions is None
    assert isinstance(unnamed, tuple)
    for one, other, third in zip(plain.to_tuple(), full.to_tuple(), unnamed, strict=False):
        assert torch.equal(one, other)
        assert torch.equal(one, third)
    layers = model.config.num_hidden_layers * model.config.passes
    heads = model.config.num_attention_heads
    width = model.config.hidden_size
    assert [each.shape for each in full.hidden_states] == [(rows, 12, width)] * (layers + 1)
    assert [each.shape for each in full.attentions] == [(rows, heads, 12, 12)] * layers
    if head == "Model":
        assert torch.equal(full.hidden_states[-1], full.last_hidden_state)
    model.config.output_hidden_states = True
    model.config.return_dict = False
    with torch.inference_mode():
        assert len(model(**inputs(head))) == len(unnamed) + 1


def test_attentions_are_what_the_layers_do(folder: Path) -> None:
    model = load(folder, "Model")
    inputs_of_blocks: list[Tensor] = []
    mixed: list[Tensor] = []
    for layer in model.encoder.layers:
        block = layer.attention
        block.qkv.register_forward_hook(lambda _, __, output: inputs_of_blocks.append(output))
        block.out.register_forward_pre_hook(lambda _, given: mixed.append(given[0]))
    with torch.inference_mode():
        attentions = model(IDS, MASK, output_attentions=True).attentions
    projected = inputs_of_blocks[::2]  # each layer projects once more for its attentions
    for shares, qkv, expected in zip(attentions, projected, mixed, strict=True):
        values = qkv.unflatten(-1, (3, shares.shape[1], -1))[:, :, 2].transpose(1, 2)
        found = (shares @ values).transpose(1, 2).flatten(-2)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        assert (shares[1, :, :, 7:] == 0).all()
        torch.testing.assert_close(shares.sum(-1), torch.ones(shares.shape[:3]))


@pytest.mark.parametrize("head", HEADS)
def test_embeddings_may_be_given_in_place_of_ids(folder: Path, head: str) -> None:
    model = load(folder, head)
    given = inputs(head)
    with torch.inference_mode():
        expected = model(**given).to_tuple()
        embedded = {**given, "inputs_embeds": model.get_input_embeddings()(given["input_ids"])}
        del embedded["input_ids"]
        found = model(**embedded).to_tuple()
        assert all(map(torch.equal, expected, found))
        for wrong in ({**given, **embedded}, {}):
            if wrong or head != "ModelForMultipleChoice":
                with pytest.raises(ValueError, match="either input_ids or inputs_embeds"):
                    model(**wrong)


def test_the_vocabulary_can_grow_and_shrink(folder: Path, tmp_path: Path) -> None:
    model = load(folder, "ModelForMaskedLM")
    size, before, again = grown(model, tmp_path / "grown")
    with torch.inference_mode():
        logits = again(IDS, MASK).logits
        assert torch.equal(logits, model(IDS, MASK).logits)
        again(torch.full((1, 4), size + 6))
    assert logits.shape[-1] == again.config.vocab_size == size + 7
    torch.testing.assert_close(logits[..., :size], before, rtol=1e-5, atol=1e-5)
    again.resize_token_embeddings(size - 3, mean_resizing=False)
    with torch.inference_mode():
        cut = again(IDS, MASK).logits
    assert cut.shape[-1] == size - 3
    torch.testing.assert_close(cut, before[..., : size - 3], rtol=1e-5, atol=1e-5)


def test_value_embeddings_grow_with_the_vocabulary_and_need_ids(tmp_path: Path) -> None:
    config = configuration("crammed", dropout=0.0, value_embeddings=True)
    done = export(untrained(word_pieces(), config), tmp_path / "export")
    assert "not modernbert: model.value_embeddings is True, not False" in done.reasons
    size, before, again = grown(load(done.path, "ModelForMaskedLM"), tmp_path / "grown")
    with torch.inference_mode():
        torch.testing.assert_close(again(IDS, MASK).logits[..., :size], before)
        again(torch.full((1, 4), size + 6))
        with pytest.raises(ValueError, match="needs token ids: give input_ids"):
            again(inputs_embeds=again.get_input_embeddings()(IDS))
    assert (again.encoder.values.weight[size:] == 0).all()


def test_a_decoder_of_its_own_grows_with_the_vocabulary(tmp_path: Path) -> None:
    config = configuration("crammed-2022", dropout=0.0, tied_decoder=False, embedding_width=24)
    folder = export(untrained(word_pieces(), config), tmp_path / "export").path
    size, before, again = grown(load(folder, "ModelForMaskedLM"), tmp_path / "grown")
    with torch.inference_mode():
        logits = again(IDS, MASK).logits
    torch.testing.assert_close(logits[..., :size], before)
    assert (logits[..., size:] == 0).all()


def test_new_embeddings_begin_as_the_others_did(folder: Path) -> None:
    model = load(folder, "Model")
    size = model.config.vocab_size
    model.resize_token_embeddings(size + 500, mean_resizing=False)
    new = model.get_input_embeddings().weight[size:]
    assert new.std().item() == pytest.approx(model.config.init_std, rel=0.1)


def test_gradient_checkpointing_changes_no_gradient(folder: Path) -> None:
    def gradients(model: Any) -> tuple[int, list[Tensor]]:
        calls = 0

        def count(*_: Any) -> None:
            nonlocal calls
            calls += 1

        model.train()
        hook = model.encoder.layers[0].register_forward_pre_hook(count)
        model(IDS, MASK, labels=IDS).loss.backward()
        hook.remove()
        found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        model.zero_grad()
        return calls, found

    model = load(folder, "ModelForMaskedLM")
    once, expected = gradients(model)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    twice, found = gradients(model)
    assert twice == 2 * once > 0
    assert all(map(torch.equal, expected, found))
    model.gradient_checkpointing_disable()
    assert gradients(model)[0] == once


def problems() -> Iterator[Any]:
    """A number of labels, a kind of problem, labels, and the loss of logits [3, ...]."""
    numbers = torch.tensor([0.5, -1.0, 2.0])
    many = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    classes = torch.tensor([1, 0, 1])
    yield 1, None, numbers, lambda x: (x.squeeze(-1) - numbers).square().mean()
    yield 1, None, numbers[:, None], lambda x: (x.squeeze(-1) - numbers).square().mean()
    yield 2, "regression", many, lambda x: (x - many).square().mean()
    yield 2, None, many, lambda x: F.binary_cross_entropy_with_logits(x, many)
    yield 2, None, classes, lambda x: F.cross_entropy(x, classes)
    some = torch.tensor([1, -100, 1])
    yield 2, None, some, lambda x: F.cross_entropy(x[[0, 2]], classes[[0, 2]])
    whole = many.long()
    kind = "multi_label_classification"
    yield 2, kind, whole, lambda x: F.binary_cross_entropy_with_logits(x, many)


@pytest.mark.parametrize("problem", [*problems()])
def test_losses_of_sequences_follow_the_kind_of_problem(folder: Path, problem: Any) -> None:
    number, kind, labels, expected = problem
    options = {"num_labels": number, "problem_type": kind}
    output = load(folder, "ModelForSequenceClassification", **options)(IDS, MASK, labels=labels)
    torch.testing.assert_close(output.loss, expected(output.logits))


def test_losses_of_the_other_heads(folder: Path) -> None:
    labels = IDS.masked_fill(MASK == 0, -100)
    output = load(folder, "ModelForMaskedLM")(IDS, MASK, labels=labels)
    kept = MASK.bool()
    torch.testing.assert_close(output.loss, F.cross_entropy(output.logits[kept], IDS[kept]))

    output = load(folder, "ModelForTokenClassification", num_labels=60)(IDS, MASK, labels=labels)
    torch.testing.assert_close(output.loss, F.cross_entropy(output.logits[kept], IDS[kept]))

    begin, end = torch.tensor([2, 99, 0]), torch.tensor([[4], [3], [1]])
    asked = {"start_positions": begin, "end_positions": end}
    output = load(folder, "ModelForQuestionAnswering")(IDS, MASK, **asked)
    loss = F.cross_entropy(output.start_logits[[0, 2]], begin[[0, 2]])  # 99 was cut off
    loss = (loss + F.cross_entropy(output.end_logits, end[:, 0])) / 2
    torch.testing.assert_close(output.loss, loss)

    given = inputs("ModelForMultipleChoice")
    chosen = torch.tensor([2, 0])
    output = load(folder, "ModelForMultipleChoice")(**given, labels=chosen)
    assert output.logits.shape == (2, 3)
    torch.testing.assert_close(output.loss, F.cross_entropy(output.logits, chosen))


@pytest.mark.parametrize("head", HEADS)
def test_padding_and_wrong_arguments(folder: Path, head: str) -> None:
    """What stands in the padding does not matter; an argument that nothing reads is an error."""
    model = load(folder, head)
    given = inputs(head)
    other = given["input_ids"].masked_fill(given["attention_mask"] == 0, 7)
    with torch.inference_mode():
        one = model(**given)[0]
        two = model(**{**given, "input_ids": other})[0]
        floats = model(**{**given, "attention_mask": given["attention_mask"].float()})[0]
    kept = MASK.bool() if one.shape[:2] == IDS.shape and head != "ModelForMultipleChoice" else ...
    assert torch.equal(one[kept], two[kept])
    assert torch.equal(one, floats)
    with pytest.raises(TypeError, match="atention_mask"):
        model(IDS, atention_mask=MASK)


def moved(device: torch.device, _: Any, given: Any, named: Any) -> Any:
    """The arguments of a call, with tensors on the device."""
    return tree_map_only(Tensor, methodcaller("to", device), (given, named))


def modules(parent: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, list[torch.nn.Module]]]:
    """The modules that a device holds as a whole, such as a layer, and what each consists of."""
    if [*parent.parameters(recurse=False)]:
        yield parent, [parent]
    for child in parent.children():
        if type(child).__name__ == "Layer" or not [*child.children()]:
            yield child, [*child.modules()]
        else:
            yield from modules(child)


def spread(model: Any, first: int) -> None:
    """Put the first modules on one device and the rest on another, as accelerate does."""
    for number, (module, parts) in enumerate([*modules(model)]):
        device = torch.device("cpu", 1 if number < first else 2)
        for part in parts:
            for name, parameter in [*part.named_parameters(recurse=False)]:
                setattr(part, name, torch.nn.Parameter(parameter.to(device)))
        if module is not model and [*module.parameters()]:
            module.register_forward_pre_hook(partial(moved, device), with_kwargs=True)


@pytest.mark.parametrize(
    ("recipe", "fields"),
    [
        ("crammed-2022", {"decoder_bias": True, "token_types": 2}),
        ("crammed", {"positions": "t5", "embedding_width": 24, "tied_decoder": False}),
        ("crammed", {"positions": "learned", "classifier": "head-transform"}),
    ],
)
def test_a_model_may_be_spread_over_devices(
    tmp_path: Path, recipe: str, fields: dict[str, Any]
) -> None:
    """Tensors without storage are refused where those of several devices are combined."""
    config = configuration(recipe, dropout=0.0, **fields)
    folder = export(untrained(word_pieces(), config), tmp_path / "export", "custom").path
    labelled = {"MaskedLM": ["labels"], "SequenceClassification": ["labels"]}
    labelled["QuestionAnswering"] = ["start_positions", "end_positions"]
    for head, names in labelled.items():
        loaded = load(folder, f"ModelFor{head}")
        for first in (1, 3, 5, 7, 9):
            with FakeTensorMode(), torch.no_grad():
                model = type(loaded)(loaded.config).eval()
                spread(model, first)
                ids = torch.ones((3, 12), dtype=torch.long, device="cpu:1")
                labels = ids if head == "MaskedLM" else ids[:, 0]
                found = model(ids, ids, **dict.fromkeys(names, labels))
                assert found[0].shape == ()
