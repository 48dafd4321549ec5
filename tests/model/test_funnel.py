"""Funnels against a plain twin, which knows no padding, no batches and no odd rows in advance."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from crammed.config import ModelConfig
from crammed.data.borders import same_document
from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.machine.device import Device
from crammed.model.classifiers import SequenceClassifier
from crammed.model.count import train_flops_per_token
from crammed.model.encoder import Encoder, initialise
from crammed.model.funnel import Pairs, pooled_length, poolings
from crammed.model.traffic import attention_bytes, attention_flops, traffic
from crammed.training.update.memory import allocated
from support.steps import SPECIALS, check_microbatches
from support.text import tiny
from support.training import train, train_in_two
from support.variants import VOCAB, configuration, random_model, some_ids

ONCE: dict[str, Any] = {"pool_at": (1,), "layers": 3, "unpooled_layers": 1}
TWICE: dict[str, Any] = {"pool_at": (1, 3), "layers": 6}
FORMS: list[dict[str, Any]] = [
    ONCE,
    TWICE,
    {**ONCE, "positions": "alibi"},
    {**TWICE, "positions": "t5"},
    {**ONCE, "positions": "learned", "residual_scalars": True},
    {**ONCE, "value_embeddings": True, "norm": "post", "final_norm": False},
    {**TWICE, "positions": "scaled-sinusoidal", "mixer": "gated-attention", "gated": True},
]


def in_pairs(states: Tensor) -> list[Tensor]:
    """The means of two neighbours, the last one alone if there is no other."""
    return [states[n : n + 2].mean(0) for n in range(0, len(states), 2)]


def plainly(encoder: Encoder, ids: Tensor) -> Tensor:
    """Hidden states [1, S, D] of one text without padding, token by token."""
    config = encoder.config
    x, _, _, values, first = encoder.prepare(encoder.tokens(ids), None, None, ids)
    own, kept, level, sizes = [x, values, first], None, 0, [x.shape[1]]
    for index, layer in enumerate(encoder.layers):
        if kept is None and poolings(config, index):
            kept = own[0]
        while level < poolings(config, index):
            level += 1
            own = [None if e is None else torch.stack(in_pairs(e[0]))[None] for e in own]
            sizes.append(own[0].shape[1])  # type: ignore[union-attr]
        if kept is not None and not poolings(config, index) and level:
            assert own[0] is not None
            for size in reversed(sizes[:-1]):
                own[0] = torch.stack([own[0][0, n // 2] for n in range(size)])[None]
            own, level = [kept + own[0], values, first], 0
        at = 2**level * torch.arange(own[0].shape[1])  # type: ignore[union-attr]
        places = encoder.position_encoding
        tables = places.looked_up(encoder, places.tables(at))
        own[0] = layer(own[0], tables, None, *own[1:])
    return encoder.final_norm(own[0])  # type: ignore[no-any-return]


@pytest.mark.parametrize("fields", FORMS, ids=str)
@pytest.mark.parametrize("length", [1, 2, 7, 8, 13])
def test_it_computes_what_the_twin_does(fields: dict[str, Any], length: int) -> None:
    encoder = random_model(configuration(dropout=0.0, **fields)).encoder
    ids = some_ids(3, length)
    expected = torch.cat([plainly(encoder, row[None]) for row in ids])
    torch.testing.assert_close(encoder(ids), expected)
    everything = torch.ones(ids.shape, dtype=torch.bool)
    torch.testing.assert_close(encoder(ids, everything), expected)
    last = torch.full((3, 1), length - 1)
    torch.testing.assert_close(encoder(ids, positions=last), expected[:, -1:])


@pytest.mark.parametrize("fields", [ONCE, {**TWICE, "positions": "t5"}], ids=str)
@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_padding_on_either_side_changes_nothing(fields: dict[str, Any], before: int) -> None:
    encoder = random_model(configuration(dropout=0.0, **fields)).encoder
    ids = some_ids(2, 7)
    whole = torch.full((2, before + 7 + 4), 17)
    whole[:, before : before + 7] = ids
    mask = torch.zeros(whole.shape, dtype=torch.bool)
    mask[:, before : before + 7] = True
    found = encoder(whole, mask)
    assert found.isfinite().all()
    # Tables of angles are float32, and the text has other positions in them.
    torch.testing.assert_close(found[mask], encoder(ids).flatten(0, 1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fields", [ONCE, TWICE], ids=str)
def test_nothing_passes_from_one_document_to_another(fields: dict[str, Any]) -> None:
    encoder = random_model(configuration(dropout=0.0, **fields)).encoder
    ids = some_ids(1, 14)
    ends = [0, 3, 8, 9, 14]  # odd and even borders, and a document of one token
    ids[0, torch.tensor(ends[1:]) - 1] = SPECIALS.sep
    tokens = encoder.tokens(ids).detach().requires_grad_()
    prepared = encoder.prepare(tokens, same_document(ids, SPECIALS.sep), None, ids)
    hidden = encoder.through_layers(*prepared)
    for begin, end in pairwise(ends):
        (slope,) = torch.autograd.grad(
            hidden[:, begin:end].square().sum(), tokens, retain_graph=True
        )
        reached = slope[0].abs().sum(1) > 0
        assert reached.nonzero().flatten().tolist() == [*range(begin, end)]


def test_the_second_of_a_pair_in_two_documents_skips_the_pooled_layers() -> None:
    ids = torch.tensor([[5, 6, SPECIALS.sep, 7, 8, 9]])
    pairs = Pairs.of(6, same_document(ids, SPECIALS.sep)[:, None])
    assert pairs.weights is not None
    assert pairs.weights.tolist() == [[[True, True], [True, False], [True, True]]]
    x = torch.arange(6.0)[None, :, None]
    assert pairs.pool(x).flatten().tolist() == [0.5, 2.0, 4.5]
    assert pairs.spread(pairs.pool(x)).flatten().tolist() == [0.5, 0.5, 2.0, 0.0, 4.5, 4.5]


def test_the_first_token_of_a_text_has_a_state_of_its_own() -> None:
    """Which is what is classified: it is not that of its pair."""
    model = SequenceClassifier(configuration(dropout=0.0, pooling="first", **ONCE), VOCAB, 2)
    initialise(model, 0.3, torch.Generator().manual_seed(0))
    ids = some_ids(2, 8)
    hidden = model.encoder(ids)
    assert (hidden[:, 0] - hidden[:, 1]).norm() > 0.1 * hidden[:, 0].norm()
    torch.testing.assert_close(model(ids), model.classify(hidden[:, 0]))


def test_odd_rows_and_traffic_are_counted_by_layer() -> None:
    config = configuration(**TWICE)
    assert [poolings(config, n) for n in range(6)] == [0, 1, 1, 2, 0, 0]
    seen = [13, 7, 7, 4, 13, 13]
    assert [pooled_length(config, n, 13) for n in range(6)] == seen
    plain = config.model_copy(update={"pool_at": ()})
    layer = 6.0 * sum(p.numel() for p in Encoder(config, 4).layers[0].parameters() if p.ndim > 1)
    whole = train_flops_per_token(plain, VOCAB, 13, 3)
    mixing = 12.0 * config.width
    saved = sum((13 - s) * layer + mixing * (13 * 13 - s * s) for s in seen) / 13
    assert train_flops_per_token(config, VOCAB, 13, 3) == pytest.approx(whole - saved)
    assert attention_flops(config, 13, 13) == 12 * config.width * sum(s * s for s in seen)
    assert attention_flops(plain, 13, 13) == 12 * config.width * 6 * 13 * 13
    assert attention_bytes(config, 64, 2) * 24 == attention_bytes(plain, 64, 2) * 17
    less, more = (traffic(each, VOCAB, 64, 16, 2, 2) for each in (config, plain))
    assert less["weights"] == more["weights"]
    for part in ("residuals and norms", "gates", "queries, keys, values"):
        assert 0.6 * more[part] < less[part] < 0.75 * more[part]


def test_it_takes_less_memory() -> None:
    def held(config: ModelConfig) -> int:
        with torch.device("meta"):
            encoder = Encoder(config, VOCAB)
            ids = torch.zeros((8, 128), dtype=torch.long)
        return allocated(lambda: encoder(ids).sum())

    config = configuration(layers=12, pool_at=(2,), max_length=128)
    plain = config.model_copy(update={"pool_at": ()})
    assert held(config) < 0.8 * held(plain)


WORDS = "model.layers=4 model.pool_at=[1,2] model.unpooled_layers=1 train.attention=document"


def test_updates_do_not_depend_on_the_microbatch(cpu: Device) -> None:
    check_microbatches(tiny("crammed", *WORDS.split()), cpu)


@pytest.mark.parametrize("masked", [False, True])
def test_it_is_one_graph_for_any_length(masked: bool) -> None:
    model = random_model(configuration(dropout=0.0, **TWICE))
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    for length in (8, 11):
        ids = some_ids(2, length)
        mask = torch.arange(length) < torch.tensor([[length], [5]]) if masked else None
        torch.testing.assert_close(compiled(ids, mask=mask), model(ids, mask=mask))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "model.pool_at=[2]",
            r"pool_at needs more layers than 2: set model\.layers to 4 or more, or model\.unp",
        ),
        (
            "model.layers=6 model.pool_at=[2,2]",
            r"pool_at needs increasing numbers from 1 to 3, such",
        ),
        ("model.layers=6 model.pool_at=[4]", "of the 6 layers, the last 2 compute all tokens"),
        (
            "model.layers=6 model.pool_at=[2] model.passes=2 model.first_attention_norm=true",
            r"pool_at needs model\.passes=1 and model\.scope=row",
        ),
        ("model.layers=6 model.pool_at=[2] model.scope=causal", "pool_at needs .*scope=row"),
        ("model.layers=6 model.pool_at=[2] model.scope=local", "pool_at needs .*scope=row"),
        (
            "model.layers=6 model.pool_at=[2] train.drop_tokens=0.5",
            r"no model\.pool_at, at least 3",
        ),
        ("model.layers=6 model.pool_at=[2] train.grow_at=[0.5]", r"grow_at and model\.pool_at do"),
        (
            "model.layers=6 model.pool_at=[2] objective.name=causal-first",
            r"set objective\.name=mas",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(words: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        tiny("crammed", *words.split())


def test_a_killed_run_resumes_and_gives_the_same_weights(
    tmp_path: Path, corpus: Corpus, cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*WORDS.split(), "train.checkpoint_seconds=1e-9"]
    config = tiny("crammed", *words, budget={"limit": "5updates"})
    whole = train(config, corpus, tmp_path / "whole", cpu).model.state_dict()
    resumed = train_in_two(config, corpus, tmp_path / "run", cpu, monkeypatch, 3).model.state_dict()
    assert all(torch.equal(weight, whole[name]) for name, weight in resumed.items())
