"""What an older version left is resumed, shown and loaded by this one.

Only through the command line, as its users do, so that nothing here depends on what is inside.
fixtures/2026-11-21/README.md says how the folders were made; they are never made anew.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from support import command

FIXTURES = Path(__file__).parent / "fixtures" / "2026-11-21"
NO_BFLOAT16 = "from crammed.machine import device; device.cpu_flags = frozenset"
"""As on the processor that made the fixtures. Muon multiplies in bfloat16 where a processor can,
and each adds such products up in its own way: losses then differ by up to 3e-3."""
ON_CPU = ("--device", "cpu", "--dtype", "float32")


def copied(to: Path, *names: str) -> None:
    """Copies of fixtures, for commands that write into them."""
    for name in names:
        if (FIXTURES / name).is_dir():
            shutil.copytree(FIXTURES / name, to / name)
        else:
            shutil.copy(FIXTURES / name, to / name)


def python(cwd: Path, *words: str) -> str:
    """What a command of this interpreter prints, with `cwd` as its working directory."""
    done = command.python(*words, cwd=cwd)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stderr}"
    return done.stdout


def crammed(cwd: Path, *words: str) -> str:
    return python(cwd, "-m", "crammed", *words)


def read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def weights_sha256(folder: Path) -> str:
    """Over name and bytes of every tensor of its model.safetensors, by name."""
    data = (folder / "model.safetensors").read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    header.pop("__metadata__", None)
    digest = hashlib.sha256()
    for name in sorted(header):
        first, last = header[name]["data_offsets"]
        digest.update(name.encode() + data[begin + first : begin + last])
    return digest.hexdigest()


def machine() -> dict[str, Any]:
    """As the fixtures note it; empty values where there is no /proc."""
    about: dict[str, str] = {}
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        key, _, value = line.partition(":")
        about.setdefault(key.strip(), value.strip())
    simd = [f for f in about.get("flags", "").split() if f.startswith(("avx", "fma", "amx"))]
    identity = {key: about.get(key) for key in ("vendor_id", "cpu family", "model")}
    return {**identity, "simd": sorted(simd), "torch": metadata.version("torch")}


def close(value: Any, tolerance: float = 1e-6) -> Any:
    """The same value with every number approximate, however deep."""
    if isinstance(value, dict):
        return {key: close(each, tolerance) for key, each in value.items()}
    if isinstance(value, list):
        return [close(each, tolerance) for each in value]
    return pytest.approx(value, abs=tolerance) if isinstance(value, float) else value


STOPPED = ("stopped", "stopped-muon", "stopped-2022")


@pytest.fixture(scope="module", params=STOPPED)
def resumed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Any, Any]:
    """A stopped run that has gone on, what its own version reached, and what this one printed."""
    folder, name = tmp_path_factory.mktemp("resumed"), request.param
    copied(folder, "corpus", name)
    expected = read(FIXTURES / name / "EXPECTED.json")
    words = [*command.prepared(NO_BFLOAT16), *expected["command"], "--out", name, "--json"]
    return folder / name, expected, json.loads(python(folder, *words))


def test_a_stopped_run_goes_on_to_the_loss_that_its_own_version_reached(
    resumed: tuple[Path, Any, Any],
) -> None:
    run, expected, result = resumed
    events = map(json.loads, (run / "events.jsonl").read_text("utf-8").splitlines())
    resumes = [event["update"] for event in events if event["event"] == "resume"]
    assert resumes == [expected["stopped_after"]]
    assert result["updates"] == expected["updates"]
    # Another processor adds up in another order: the loss moves by less than 1e-5 then.
    assert result["heldout"]["loss@0.15"] == pytest.approx(expected["loss@0.15"], abs=1e-4)


# Only where the processor and its instructions, and the library that chooses among them, are those
# that made the fixtures.
@pytest.mark.skipif(
    any(read(FIXTURES / name / "EXPECTED.json")["machine"] != machine() for name in STOPPED),
    reason="the fixtures were made on another processor or with another PyTorch",
)
def test_a_stopped_run_goes_on_to_the_same_weights_bit_for_bit(
    resumed: tuple[Path, Any, Any],
) -> None:
    run, expected, _ = resumed
    assert weights_sha256(run / "final") == expected["weights_sha256"]


def test_a_finished_run_is_shown_and_evaluated_further(tmp_path: Path) -> None:
    copied(tmp_path, "finished", "text.jsonl.gz", "glue")
    summary = read(FIXTURES / "finished" / "summary.json")
    tasks = read(FIXTURES / "finished" / "evaluation" / "scores.json")["suites"]["glue"]["tasks"]
    words = read(FIXTURES / "EXPECTED.json")["run"]
    result = json.loads(crammed(tmp_path, *words, "--out", "finished", "--json"))
    assert {name: result[name] for name in ("heldout", "tokens", "parameters", "corpus")} == {
        name: summary[name] for name in ("heldout", "tokens", "parameters", "corpus")
    }
    assert {name: task["median"] for name, task in result["tasks"].items()} == close(
        {name: task["median"] for name, task in tasks.items()}
    )
    final, report = tmp_path / "finished" / "final", tmp_path / "finished" / "report.html"
    assert weights_sha256(final) == weights_sha256(FIXTURES / "finished" / "final")
    assert "text.jsonl.gz" in report.read_text("utf-8")

    more = ("--tasks", "rte", "--seeds", "3", "--no-untrained", "--jobs", "1", *ON_CPU, "--json")
    printed = crammed(tmp_path, "evaluate", "finished", "--data", "glue", *more)
    scores = json.loads(printed)["suites"]["glue"]["tasks"]
    assert scores["rte"]["seeds"][:2] == close(tasks["rte"]["seeds"])
    assert len(scores["rte"]["seeds"]) == 3
    assert {key: scores["stsb"][key] for key in tasks["stsb"]} == close(tasks["stsb"])


def test_evaluations_are_compared_extended_and_reported(tmp_path: Path) -> None:
    copied(tmp_path, "finished", "finished-custom", "evaluation", "corpus")
    compared = crammed(tmp_path, "evaluate", "finished", "--compare", "evaluation", "--json")
    expected = read(FIXTURES / "EXPECTED.json")["compare"]
    # Both models give all rows of rte the same class, which that version did not notice.
    assert expected["numbers"][1]["interval"] == [0.0, 0.0]
    expected["numbers"][1] |= {"interval": None, "p": None, "same": True}
    assert json.loads(compared)["compare"] == close(expected)

    # The folder takes scores of the model that it is of, by the protocol that it has.
    copied(tmp_path, "protocol.yaml")
    again = ("--suite", "heldout", "--data", "corpus/heldout.jsonl.gz", "--into", "evaluation")
    how = ("--protocol", "protocol.yaml", "--device", "cpu")
    crammed(tmp_path, "evaluate", "finished/export", *again, *how)
    suites = read(tmp_path / "evaluation" / "scores.json")["suites"]
    before = read(FIXTURES / "evaluation" / "scores.json")["suites"]
    assert before["heldout"].keys() < suites["heldout"].keys()  # which say more by now
    suites["heldout"] = {name: suites["heldout"][name] for name in before["heldout"]}
    assert suites == close(before, 1e-4)

    crammed(tmp_path, "report", "finished", "finished-custom", "evaluation", "--out", "all.html")
    page = (tmp_path / "all.html").read_text("utf-8")
    assert all(name in page for name in ("finished-custom", "rte", "stsb"))


LOGITS = """
import json, sys, torch
from transformers import AutoModelForMaskedLM
ids = torch.tensor(json.loads(sys.argv[1]))
made = []
for folder in sys.argv[2:]:
    model = AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True).eval()
    with torch.inference_mode():
        made.append(model(input_ids=ids).logits[:, :, :8].tolist())
print(json.dumps(made))
"""


def test_exports_are_the_same_models(tmp_path: Path) -> None:
    copied(tmp_path, "finished", "finished-custom")
    for name in ("finished", "finished-custom"):
        crammed(tmp_path, "export", name, "--to", f"again/{name}")
    native, again = FIXTURES / "finished" / "export", tmp_path / "again" / "finished"
    assert weights_sha256(again) == weights_sha256(native)
    then, now = read(native / "config.json"), read(again / "config.json")
    later = {name for name in then if "dropout" in name}  # narrow models had it then
    assert {name: value for name, value in then.items() if value != now[name]}.keys() == later
    assert now.keys() == then.keys() | {"initializer_cutoff_factor"}
    # The old export brings the code of its time, which transformers 4 never loaded; the new one
    # brings today's.
    expected = read(FIXTURES / "finished-custom" / "LOGITS.json")
    folders = ["again/finished-custom"]
    if int(metadata.version("transformers").split(".")[0]) > 4:
        folders.append("finished-custom/export")
    printed = python(tmp_path, "-c", LOGITS, json.dumps(expected["ids"]), *folders)
    found = json.loads(printed.splitlines()[-1])
    assert found == [close(expected["logits"], 1e-5) for _ in folders]


def test_a_corpus_is_whole_and_shown(tmp_path: Path) -> None:
    copied(tmp_path, "corpus")
    assert "is intact" in crammed(tmp_path, "data", "verify", "corpus")
    shown = json.loads(crammed(tmp_path, "data", "show", "corpus", "--json"))
    manifest = read(FIXTURES / "corpus" / "manifest.json")
    assert {key: shown[key] for key in manifest} == manifest
    assert shown["samples"] == read(FIXTURES / "EXPECTED.json")["samples"]


def test_a_study_goes_on_where_it_was(tmp_path: Path) -> None:
    copied(tmp_path, "study", "study.yaml", "corpus")
    words = read(FIXTURES / "EXPECTED.json")["study"]
    result = json.loads(crammed(tmp_path, *words, "--jobs", "2", "--out", "study", "--json"))
    assert result["arms"] == read(FIXTURES / "study" / "study.json")["arms"]
    assert {row["arm"]: row["seeds"] for row in result["compared"]} == {"plain": 2, "muon": 2}
