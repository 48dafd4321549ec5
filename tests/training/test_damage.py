"""What is written once is read as it was written, or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from crammed.budget import Work
from crammed.data.corpus import Corpus
from crammed.errors import InputError
from crammed.files.folders import new_folder
from crammed.files.hashes import damage, write_hashes
from crammed.files.writing import write_json
from crammed.machine.device import Device
from crammed.model.trained import load_trained
from crammed.runs.directory import RunDir
from crammed.training.checkpoint import Checkpoints, load_checkpoint
from crammed.training.session import Session
from crammed.training.update.build import build
from crammed.training.update.step import TrainStep
from support.models import untrained
from support.steps import SPECIALS
from support.text import tiny

SMALL = ("model.layers=1", "model.width=16", "model.head_dim=8")
CONFIG = tiny("crammed", *SMALL)
GENERATION = ("hashes.json", "model.safetensors", "optimizer.safetensors", "state.json")
FINAL = ("config.json", "hashes.json", "model.safetensors", "tokenizer.json")
UP = "encoder.layers.0.ffn.up.weight"
HUGE = (1 << 62).to_bytes(8, "little") + b"{}"
"""A file of tensors that says that its header is larger than any disk."""


def updated(step: TrainStep) -> TrainStep:
    """The step after an update."""
    for parameter in step.parameters:
        parameter.grad = torch.full_like(parameter, 0.1)
    step.apply(1.0)
    return step


@pytest.fixture(scope="module")
def step(cpu: Device) -> TrainStep:
    return build(CONFIG, 256, SPECIALS, cpu)


@pytest.fixture(scope="module")
def checkpoints(step: TrainStep, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two generations, of updates 1 and 2."""
    with RunDir.open(tmp_path_factory.mktemp("checkpoints") / "run", CONFIG) as run:
        writer = Checkpoints(Session.untimed(run, step, corpus_sha256="corpus"))
        for updates in (1, 2):
            updated(step)
            writer.save(Work(updates, 8 * updates, 256 * updates, 1e6))
    return run.checkpoints


@pytest.mark.parametrize(
    "words", [(), ("optim.name=nadam",), ("optim.name=library", "optim.of=SOAP")], ids=len
)
def test_nothing_that_was_read_stays_mapped(
    tmp_path: Path, cpu: Device, words: tuple[str, ...]
) -> None:
    """On NFS, a folder whose files are mapped cannot be deleted."""
    config = tiny("crammed", *SMALL, *words)
    step = updated(build(config, 256, SPECIALS, cpu))
    with RunDir.open(tmp_path / "run", config) as run:
        Checkpoints(Session.untimed(run, step)).save(Work(1, 8, 256, 1e6))
    assert load_checkpoint(run.checkpoints, step, "").generation is not None
    assert str(run.checkpoints) not in Path("/proc/self/maps").read_text("utf-8")


@pytest.fixture(scope="module")
def final(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with nothing but its final model."""
    run = tmp_path_factory.mktemp("finished")
    untrained(corpus.tokenizer, CONFIG.model).save(run / "final")
    return run


class Changed:
    """Changes a file for a while; faster than copying its folder for each fault."""

    def __init__(self, file: Path, content: bytes) -> None:
        self._file, self._old, self._new = file, file.read_bytes(), content

    def __enter__(self) -> None:
        self._file.write_bytes(self._new)

    def __exit__(self, *_: object) -> None:
        self._file.write_bytes(self._old)


def flips(file: Path) -> Iterator[bytes]:
    """The file with one bit flipped: every bit of the first and last bytes, and many between."""
    content = file.read_bytes()
    bits = 8 * len(content)
    places = {*range(128), *range(0, bits, max(1, bits // 97)), *range(bits - 64, bits)}
    for place in sorted(places):
        changed = bytearray(content)
        changed[place // 8] ^= 1 << place % 8
        yield bytes(changed)


def assert_the_older_is_used(checkpoints: Path, step: TrainStep) -> None:
    loaded = load_checkpoint(checkpoints, step, "corpus")
    assert loaded.state.work.updates == 1
    assert len(loaded.damaged) == 1
    assert loaded.damaged[0].startswith("step-00000002 is damaged (")


@pytest.mark.parametrize("name", GENERATION)
def test_a_flipped_bit_in_a_checkpoint_is_found(
    checkpoints: Path, step: TrainStep, name: str
) -> None:
    assert load_checkpoint(checkpoints, step, "corpus").state.work.updates == 2
    file = checkpoints / "step-00000002" / name
    for changed in flips(file):
        with Changed(file, changed):
            assert damage(file.parent)
    with Changed(file, changed):
        assert_the_older_is_used(checkpoints, step)


def test_where_all_generations_are_damaged_one_line_says_what_to_do(
    checkpoints: Path, step: TrainStep
) -> None:
    files = [checkpoints / f"step-0000000{number}" / "state.json" for number in (1, 2)]
    with Changed(files[0], b"{}"), Changed(files[1], b""):
        with pytest.raises(InputError) as caught:
            load_checkpoint(checkpoints, step, "corpus")
    words = str(caught.value)
    assert "step-00000002 is damaged (state.json differs from its hash)" in words
    assert "step-00000001 is damaged (state.json differs from its hash)" in words
    assert "or delete" in words
    assert "\n" not in words


OLD_FAULTS = {
    "state.json": (b"", b"[]", b'"x"', b"[" * 100_000, b'{"schema": 1}', b"\xff", b'{"schema": 2}'),
    "model.safetensors": (b"", HUGE, b"\0" * 8, b"\2\0\0\0\0\0\0\0{}"),
    "optimizer.safetensors": (b"", HUGE, b"\x09\0\0\0\0\0\0\0" + b"[" * 9),
}


@pytest.mark.parametrize("name", OLD_FAULTS)
def test_a_hostile_file_of_an_older_version_is_one_line(
    tmp_path: Path, step: TrainStep, checkpoints: Path, name: str
) -> None:
    """Older versions wrote no hashes, so the files themselves have to make sense."""
    shutil.copytree(checkpoints / "step-00000002", tmp_path / "step-00000002")
    folder = tmp_path / "step-00000002"
    (folder / "hashes.json").unlink()
    state = json.loads((folder / "state.json").read_text())
    for later in ("detour", "end", "over"):
        del state[later]
    (folder / "state.json").write_text(json.dumps({**state, "schema": 1}))
    assert load_checkpoint(tmp_path, step, "corpus").state.work.updates == 2
    faults = list(OLD_FAULTS[name])
    if name != "state.json":
        content = (folder / name).read_bytes()
        faults += [content[:-1], content[:100]]
        faults += [content.replace(b"tokens", b"tokenz"), content.replace(b"F32", b"I32")]
        faults.append(content[:-4] + b"\0\0\xc0\x7f")  # a NaN
    for fault in faults:
        with Changed(folder / name, fault), pytest.raises(InputError, match="is damaged") as caught:
            load_checkpoint(tmp_path, step, "corpus")
        assert "\n" not in str(caught.value)
    (folder / name).unlink()
    (folder / name).mkdir()
    with pytest.raises(InputError, match="is damaged"):
        load_checkpoint(tmp_path, step, "corpus")


@pytest.mark.parametrize(
    "begun", ["NaN", "Infinity", "1", "-1", "null", "[]", '"x"', "1" + "0" * 400]
)
def test_a_beginning_that_is_none_is_one_line(
    tmp_path: Path, step: TrainStep, checkpoints: Path, begun: str
) -> None:
    folder = tmp_path / "step-00000002"
    shutil.copytree(checkpoints / "step-00000002", folder)
    (folder / "hashes.json").unlink()
    state = {**json.loads((folder / "state.json").read_text()), "schema": 1, "begun": 0.5}
    text = json.dumps(state)
    (folder / "state.json").write_text(text)
    assert load_checkpoint(tmp_path, step, "corpus").state.begun == 0.5
    (folder / "state.json").write_text(text.replace('"begun": 0.5', f'"begun": {begun}'))
    with pytest.raises(InputError, match="is damaged"):
        load_checkpoint(tmp_path, step, "corpus")


@pytest.mark.parametrize("name", FINAL)
def test_a_flipped_bit_in_a_final_model_is_found(final: Path, name: str) -> None:
    load_trained(final)
    file = final / "final" / name
    for changed in flips(file):
        with Changed(file, changed):
            assert damage(file.parent)
    with Changed(file, changed), pytest.raises(InputError, match=r"final is damaged \("):
        load_trained(final)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("hashes.json", None),
        ("config.json", None),
        ("model.safetensors", None),
        ("model.safetensors", HUGE),
        ("tokenizer.json", b"{}"),
        ("config.json", b"[" * 100_000),
        ("config.json", b"[]"),
    ],
)
def test_a_hostile_final_model_is_one_line_even_if_its_hashes_match(
    tmp_path: Path, final: Path, name: str, content: bytes | None
) -> None:
    folder = tmp_path / "final"
    shutil.copytree(final / "final", folder)
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
        write_hashes(folder)
    with pytest.raises(InputError, match=r"final is damaged \(.*restore it") as caught:
        load_trained(tmp_path)
    assert "\n" not in str(caught.value)


def test_weights_that_do_not_suit_the_configuration_are_refused(
    tmp_path: Path, final: Path
) -> None:
    shutil.copytree(final / "final", tmp_path / "final")
    file = tmp_path / "final" / "config.json"
    values = json.loads(file.read_text())
    for change in ({"layers": 900}, {"layers": 2}, {"width": 32}):
        file.write_text(json.dumps({**values, "model": {**values["model"], **change}}))
        write_hashes(file.parent)
        with pytest.raises(InputError, match=r"does not match config\.json"):
            load_trained(tmp_path)
    file.write_text(json.dumps({**values, "vocab_size": 10**22}))
    write_hashes(file.parent)
    with pytest.raises(InputError, match="no vocabulary has 1000"):
        load_trained(tmp_path)


def test_hashes_name_what_differs(tmp_path: Path) -> None:
    with new_folder(tmp_path / "made") as folder:
        (folder / "a").write_text("1")
        (folder / "b").write_text("2")
        write_hashes(folder)
    assert damage(tmp_path / "made") is None
    (tmp_path / "made" / "more").write_text("what nobody reads")
    assert damage(tmp_path / "made") is None
    (tmp_path / "made" / "b").write_text("3")
    assert damage(tmp_path / "made") == "b differs from its hash"
    (tmp_path / "made" / "a").unlink()
    assert damage(tmp_path / "made") == "a is missing"
    (tmp_path / "made" / "hashes.json").write_text('{"a": "0"}')
    assert damage(tmp_path / "made") == "hashes.json is not as it was written"
    write_json(tmp_path / "made" / "hashes.json", {"../b": "0"})
    assert damage(tmp_path / "made") == "../b is missing"  # no path leads out of the folder
    (tmp_path / "made" / "hashes.json").write_text("[]")
    assert damage(tmp_path / "made") == "hashes.json cannot be read"


def test_a_checkpoint_of_another_run_is_refused(checkpoints: Path, step: TrainStep) -> None:
    with (
        Changed(checkpoints.parent / "env.json", b"{}"),
        pytest.raises(InputError, match="belongs to another run, or"),
    ):
        load_checkpoint(checkpoints, step, "corpus")
    assert load_checkpoint(checkpoints, step, "corpus").state.work.updates == 2


@pytest.mark.parametrize(
    ("optimizer", "name", "shape", "change"),
    [
        ("adafactor", f"{UP}/row_var", (64, 1), None),
        ("adafactor", "encoder.final_norm.weight/variance", (16,), None),
        ("adafactor", f"{UP}/row_var", (64, 1), (3, 1)),
        ("adafactor", f"{UP}/row_var", (64, 1), (64,)),
        ("adafactor", f"{UP}/row_var", (64, 1), (64, 16)),
        ("adafactor", f"{UP}/col_var", (1, 16), (64, 1)),
        ("adamw", f"{UP}/exp_avg", (64, 16), (1, 16)),  # which would be broadcast
        ("adamw", f"{UP}/exp_avg_sq", (64, 16), (64, 1)),
        ("adamw", f"{UP}/exp_avg_sq", (64, 16), ()),
        ("adamw", "encoder.final_norm.weight/exp_avg", (16,), (1,)),
        ("adamw", f"{UP}/step", (), (64, 16)),
        ("muon", f"{UP}/momentum", (64, 16), (1, 16)),
        ("sgd", f"{UP}/momentum_buffer", (64, 16), (1, 16)),
    ],
)
def test_shapes_of_what_an_optimizer_keeps_are_checked(
    tmp_path: Path,
    cpu: Device,
    optimizer: str,
    name: str,
    shape: tuple[int, ...],
    change: tuple[int, ...] | None,
) -> None:
    config = tiny("crammed", *SMALL, f"optim.name={optimizer}")
    step = updated(build(config, 256, SPECIALS, cpu))
    with RunDir.open(tmp_path / "run", config) as run:
        Checkpoints(Session.untimed(run, step, corpus_sha256="corpus")).save(Work(updates=1))
    (generation,) = run.checkpoints.glob("step-*")
    load_checkpoint(run.checkpoints, build(config, 256, SPECIALS, cpu), "corpus")
    file = generation / "optimizer.safetensors"
    tensors = load_file(file)
    assert tensors.pop(name).shape == shape
    if change is not None:
        tensors[name] = torch.ones(change)
    save_file(tensors, file)
    write_hashes(generation)
    fault = "lacks values of some parameters" if change is None else "does not match the model"
    with pytest.raises(InputError, match=fault):
        load_checkpoint(run.checkpoints, step, "corpus")
