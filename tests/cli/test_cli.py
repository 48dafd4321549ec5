from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from crammed.cli import studies
from crammed.cli.app import _spread_data, app
from crammed.config.yamlfile import load_yaml
from crammed.doctor import TINY
from crammed.errors import InputError
from crammed.study.spec.arms import study_names
from support.command import crammed, prepared, python
from support.tasks import write_task
from support.text import documents, write_jsonl

SMALL = (*TINY, "compute.workers=1")


def refusal(*arguments: str | Path, cwd: Path | None = None) -> str:
    """The one line of error that a refused command prints."""
    done = crammed(*arguments, cwd=cwd)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return lines[0]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run of everything on small data, made by the command line."""
    folder = tmp_path_factory.mktemp("cli")
    text = write_jsonl(folder / "text.jsonl", documents(600))
    glue = write_task(folder / "glue", "rte", rows=40)
    done = crammed(
        *("run", "crammed", *TINY, "finetune.seeds=2", "finetune.epochs=1"),
        *("--budget", "20updates", "--data", text, "--glue", glue, "--tasks", "rte"),
        *("--out", folder / "run", "--json"),
    )
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


def test_run_makes_everything_and_prints_one_object(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, result = finished
    run = folder / "run"
    assert result["run_dir"] == str(run)
    assert result["export_dir"] == str(run / "export")
    assert result["updates"] == 20
    assert result["tokens"] == 20 * 8 * 32
    assert result["heldout_loss"] == result["heldout"]["loss@0.15"]
    assert result["exaflop"] > 0
    assert result["tasks"]["rte"]["official"] is False
    for name in (
        *("config.json", "env.json", "metrics.jsonl", "events.jsonl", "summary.json"),
        *("evaluation/scores.json", "report.html", "export/config.json", "final/model.safetensors"),
    ):
        assert (run / name).is_file(), name
    scores = json.loads((run / "evaluation" / "scores.json").read_text())
    assert scores["suites"]["glue"]["tasks"]["rte"]["seeds"]


def test_the_other_verbs_on_a_finished_run(
    finished: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, result = finished
    run = folder / "run"
    shown = crammed("data", "show", run / "corpus", "--rows", "2")
    assert shown.returncode == 0
    assert "vocabulary" in shown.stdout
    assert "row 2" in shown.stdout
    verified = crammed("data", "verify", run / "corpus")
    assert verified.returncode == 0, verified.stderr
    assert "is intact" in verified.stdout

    text = run / "corpus" / "heldout.jsonl.gz"
    evaluated = crammed("evaluate", run, "--suite", "heldout", "--data", text, "--json")
    heldout = json.loads(evaluated.stdout)["suites"]["heldout"]
    assert heldout["loss@0.15"] == pytest.approx(result["heldout"]["loss@0.15"])

    scores = tmp_path / "results" / "scores.json"
    evaluated = crammed(
        *("evaluate", run, "--data", folder / "glue", "--tasks", "rte", "--seeds", "1"),
        *("--out", scores, "--json"),
    )
    tasks = json.loads(evaluated.stdout)["suites"]["glue"]["tasks"]
    assert tasks == json.loads(scores.read_text())["suites"]["glue"]["tasks"]
    assert len(tasks["rte"]["seeds"]) == 2, "what the run had is kept"
    itself = crammed("evaluate", "--compare", run, run)
    assert (itself.returncode, "A and B are both" in itself.stderr) == (2, True)
    shutil.copytree(run / "evaluation", tmp_path / "copy")
    compared = crammed("evaluate", "--compare", tmp_path / "copy", run, "--json")
    assert json.loads(compared.stdout)["compare"]["numbers"][0]["difference"] == 0.0

    again = crammed("export", run, "--to", tmp_path / "again", "--json")
    assert json.loads(again.stdout)["format"] == "modernbert"
    mine, theirs = (f / "model.safetensors" for f in (tmp_path / "again", run / "export"))
    assert mine.read_bytes() == theirs.read_bytes()

    shutil.copytree(run, tmp_path / "damaged")
    for content in ("{", "[]", "{}"):
        (tmp_path / "damaged" / "summary.json").write_text(content)
        said = refusal("export", tmp_path / "damaged", "--to", tmp_path / "none")
        assert "summary.json is damaged" in said

    both = crammed("report", run, run, "--out", tmp_path / "both.html")
    assert both.returncode == 0
    assert "2 runs" in (tmp_path / "both.html").read_text()


def test_prepare_and_pretrain_share_a_corpus(tmp_path: Path) -> None:
    text = write_jsonl(tmp_path / "text.jsonl", documents(600))
    corpus = tmp_path / "corpus"
    prepared = crammed("prepare", "crammed", *SMALL, "--data", text, "--out", corpus)
    assert prepared.returncode == 0, prepared.stderr
    assert f" --corpus {corpus} --budget 24h\n" in prepared.stdout
    assert prepared.stderr.startswith("budget  24h, from recipe crammed; choose another")
    (tmp_path / "mine.yaml").write_text("extends: crammed\nbudget: {limit: 4updates}\n")
    model: list[str] = [word for word in SMALL if word.startswith(("model", "batch", "finetune"))]
    trained = crammed(
        "pretrain",
        tmp_path / "mine.yaml",
        *model,
        *("--corpus", corpus, "--out", tmp_path / "run", "--json"),
    )
    assert trained.returncode == 0, trained.stderr
    assert trained.stderr.startswith("budget  4 updates, from recipe mine; choose another")
    given = crammed("pretrain", *model, "budget.limit=0h", "--corpus", corpus)
    assert "leaves nothing" in given.stderr
    result = json.loads(trained.stdout)
    assert result["updates"] == 4
    assert result["report"] is None
    words = refusal("pretrain", *model, "data.row_length=64", "--corpus", corpus, "--budget", "1h")
    assert "the corpus was prepared with data.row_length=" in words


def test_help_of_every_verb() -> None:
    listed = crammed("--help").stdout
    named = [command.name or command.callback.__name__ for command in app.registered_commands]  # type: ignore[union-attr]
    for verb in (*named, "data"):
        assert verb in listed
        assert crammed(verb, "--help").returncode == 0


def test_recipes_are_listed_and_shown() -> None:
    listed = json.loads(crammed("recipes", "--json").stdout)
    assert listed["crammed-2022"]["parameters"] == 119_589_889
    shown = crammed("recipes", "izsak").stdout
    assert "# 337,081,344 parameters" in shown
    assert load_yaml(shown)["recipe"] == "izsak"


def test_studies_are_listed_and_unknown_ones_refused() -> None:
    listed = json.loads(crammed("study", "--json").stdout)
    assert sorted(listed) == study_names()
    assert all(study["description"] for study in listed.values())
    assert listed["schedules"]["baseline"] in listed["schedules"]["arms"]
    assert "choose one of ablation, architecture" in refusal("study", "nothing")
    assert "a study needs --corpus" in refusal("study", "all")
    assert "a study needs --corpus" in refusal("study", "masking")
    assert "one recipe at a time" in refusal("study", "masking", "crammed", "izsak")


@pytest.mark.parametrize(
    "chosen",
    [{"seeds": 5}, {"jobs": 2}, {"blimp": Path("a")}, {"tasks_data": Path("a")}, {"ray": "x"}],
)
def test_options_without_the_study_to_run_are_refused(chosen: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="name the study to run"):
        studies.study(**chosen)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("crammed", "--budget", "0h"), "leaves nothing"),
        (("crammed", "izsak"), "one recipe at a time"),
        (("crammed", "--tasks", "rta", "--glue", "."), "no task 'rta': did you mean rte?"),
        (("crammed", "compute.device=cuda"), "this machine has none"),
        (("--budget", "1h", "budget.limit=5h"), "budget.limit is set twice, by --budget and by"),
        (("data={sources: [a]}",), "data.sources is set twice, by --data"),
        (("--budget", "1h", "budget=2h"), "budget.limit is set twice, by --budget and by"),
        (("--fit", "follows_budget=[batch.rows]"), "follows_budget is set twice, by --fit"),
        (("--data", ""), "--data is empty: name a file or folder"),
        (("batch.rows=1", "--budget", "9tok"), "ends before one update of 1 row is done"),
        (("model.layers=1000", "model.width=1048576"), "P parameters needs"),
    ],
)
def test_wrong_words_leave_nothing_behind(
    tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    text = write_jsonl(tmp_path / "text.jsonl", documents(600))
    line = refusal("run", *words, "--data", text, "--out", tmp_path / "run", cwd=tmp_path)
    assert message in line
    assert [path.name for path in tmp_path.iterdir()] == ["text.jsonl"]


def test_wrong_data_leaves_nothing_behind(tmp_path: Path) -> None:
    good = documents(600)
    cases: dict[str, tuple[bytes, str]] = {
        "empty.txt": (b"", "is empty"),
        "binary.txt": (bytes(range(256)) * 50, "binary"),
        "cut.jsonl.zst": (b"\x28\xb5\x2f\xfd\x04", "cut.jsonl.zst"),
        "half.jsonl": (json.dumps({"text": good[0]}).encode() + b'\n{"text": "x', "line 2"),
        "tiny.txt": (b"One.\n\nTwo.\n", "too few"),
    }
    for name, (content, message) in cases.items():
        (tmp_path / name).write_bytes(content)
        line = refusal("run", *SMALL, "--data", tmp_path / name, "--out", tmp_path / "run")
        assert message in line
        assert not (tmp_path / "run").exists()
    assert "no such data" in refusal("run", "--data", tmp_path / "none.txt")
    assert "no data" in refusal("run", "crammed")
    forgotten = crammed("run", *SMALL, "--data", tmp_path / "tiny.txt", "--out", tmp_path / "run")
    first = "budget  24h, from recipe crammed; choose another with --budget, such as --budget 1h"
    assert forgotten.stderr.splitlines()[0] == first
    small = write_jsonl(tmp_path / "small.jsonl", good)
    words = ("batch.rows=100000", "--budget", "5updates")
    only = [word for word in SMALL if not word.startswith("batch")]
    line = refusal("run", *only, *words, "--data", small, "--out", tmp_path / "run")
    assert "fewer than one batch" in line
    assert (tmp_path / "run" / "corpus" / "manifest.json").exists()  # kept for another try
    again = ("batch.rows=90000", "--budget", "5updates")
    line = refusal("run", *only, *again, "--data", small, "--out", tmp_path / "run")
    assert "fewer than one batch of 90,000" in line


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line_and_costs_no_finished_work(tmp_path: Path) -> None:
    """The held-out documents are written to a device that is always full."""
    text = write_jsonl(tmp_path / "text.jsonl", documents(600))
    full = (
        "import crammed.data.preparing.driver as p, pathlib\n"
        "old = p.write_gzip\n"
        "p.write_gzip = lambda path, chunks: old(pathlib.Path('/dev/full'), chunks)"
    )
    done = python(*prepared(full), "run", *SMALL, "--data", text, "--out", tmp_path / "run")
    assert done.returncode == 2, done.stderr
    last = done.stderr.splitlines()[-1]
    assert "the disk is full" in last
    assert last.endswith("what is finished is kept, and the corrected command continues from there")
    assert list((tmp_path / "run" / ".corpus.preparing").glob("parts/*/*.clean.json"))
    assert not (tmp_path / "run" / "corpus").exists()


@pytest.mark.parametrize("moment", ["atexit.register(stop)", "app._say = stop"])
def test_a_signal_at_the_very_end_prints_no_traceback(moment: str) -> None:
    script = (
        "import atexit, os, signal\n"
        "from crammed.cli import app\n"
        "stop = lambda *_: os.kill(os.getpid(), signal.SIGTERM)\n"
        f"{moment}\n"
        "app.main()\n"
    )
    done = python("-c", script, "recipes", "none" if "_say" in moment else "crammed")
    assert done.returncode == -signal.SIGTERM
    assert done.stderr == ""


def test_an_interrupt_that_a_library_disguises_is_one_line() -> None:
    script = (
        "import os, signal\n"
        "from crammed.cli import app\n"
        "def draw(**_):\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    except BaseException:\n"
        "        raise ValueError('Invalid matrix') from None\n"
        "app.app = draw\n"
        "app.main()\n"
    )
    done = python("-c", script)
    assert done.returncode == 75
    assert done.stderr == "error: interrupted\n"


def test_a_disk_that_fails_anywhere_is_one_line() -> None:
    failing = (
        "import errno, pathlib\n"
        "import crammed.rules.recipe\n"  # importing reads files of other packages
        "def fail(path, *_):\n"
        "    raise OSError(errno.EIO, 'Input/output error', str(path))\n"
        "pathlib.Path.read_text = fail"
    )
    done = python(*prepared(failing), "recipes", "crammed")
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert "crammed.yaml: Input/output error; check the disk" in line


@pytest.mark.parametrize(
    "error", ["MemoryError()", "ImportError('x.so: failed to map segment from shared object')"]
)
def test_memory_that_runs_out_is_one_line(error: str) -> None:
    code = f"""
from crammed.cli import app
def fail(**_):
    raise {error}
app.app = fail
app.main()
"""
    done = python("-c", code)
    assert done.returncode == 2
    assert done.stderr.startswith("error: memory ran out: raise its limit (ulimit -v)")
    assert done.stderr.count("\n") == 1


def test_text_that_changed_under_a_run_is_noticed(tmp_path: Path) -> None:
    text = write_jsonl(tmp_path / "text.jsonl", documents(600))
    arguments = ("run", *SMALL, "--budget", "3updates", "--data", text, "--out", tmp_path / "run")
    assert crammed(*arguments).returncode == 0
    write_jsonl(text, documents(601))
    again = crammed(*arguments)
    assert again.returncode == 2
    corpus = tmp_path / "run" / "corpus"
    assert f"1 file is new or changed since {corpus} was prepared (text.jsonl)" in again.stderr
    text.unlink()
    assert crammed(*arguments).returncode == 0


def test_a_failed_task_finishes_the_run_with_code_5(tmp_path: Path) -> None:
    text = write_jsonl(tmp_path / "text.jsonl", documents(600))
    glue = write_task(tmp_path / "glue", "stsb", rows=40)
    done = crammed(
        *("run", *SMALL, "finetune.lr=1e30", "--budget", "3updates", "--data", text),
        *("--glue", glue, "--out", tmp_path / "run"),
    )
    assert done.returncode == 5
    last = done.stderr.splitlines()[-1]
    assert "stsb: fine-tuning diverged" in last
    assert last.endswith(f"; to try them again, repeat the command with --out {tmp_path / 'run'}")
    assert "failed: " in (tmp_path / "run" / "report.html").read_text()


def test_data_takes_several_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spread = _spread_data(
        ["run", "demo", "--data", "a.txt", "b=c/d.txt", "model.width=3", "--seed", "1"]
    )
    assert spread == [
        *("run", "demo", "--data", "a.txt", "--data", "b=c/d.txt"),
        *("model.width=3", "--seed", "1"),
    ]
    follows = "follows_budget=[batch.rows, optim.lr]"
    assert _spread_data(["run", "--data", "a", follows]) == ["run", "--data", "a", follows]
    heldout = ["--heldout", "a", "b", "--data", "c", "d", "--heldout", "e"]
    assert _spread_data(["prepare", *heldout]) == [
        *("prepare", "--heldout", "a", "--heldout", "b"),
        *("--data", "c", "--data", "d", "--heldout", "e"),
    ]
    assert _spread_data(["--data", "a", "--out", "x", "y"]) == ["--data", "a", "--out", "x", "y"]
    assert _spread_data(["--data", "a", "lr=4"]) == ["--data", "a", "lr=4"]
    for both in (["a", "-"], ["-", "a"]):  # standard input is no option
        spread = _spread_data(["--data", *both, "--out", "x"])
        assert spread == ["--data", both[0], "--data", both[1], "--out", "x"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=4").touch()
    assert _spread_data(["--data", "a", "lr=4"]) == ["--data", "a", "--data", "lr=4"]


def test_the_command_line_imports_nothing_heavy() -> None:
    heavy = "('torch', 'numpy', 'pydantic')"
    code = f"import sys, crammed.cli.app; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"
    assert app.info.help
