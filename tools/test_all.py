"""Run all tests there are and write what they found to records/test-all/output.txt.

    make test-all

The steps are `make test`, the tests marked `long`, the tests of commands with a fresh interpreter
for each command, and the tests of whatever depends most on libraries, with the oldest and with the
newest libraries that pyproject.toml allows; there, exported models also go through the Trainer,
sentence-transformers and ONNX. All steps run, even if one fails.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "records" / "test-all" / "output.txt"
PYTEST = ["-m", "pytest", "-n", "auto", "-q"]
COMMANDS = ["tests/cli", "tests/study", "tests/training/test_resume.py"]
COMMANDS += ["tests/training/test_distributed.py", "tests/data/test_preparation.py"]
COMMANDS += ["tests/evaluation/test_suite.py", "tests/test_older_versions.py", "tests/workshop"]
LIBRARIES = ["tests/config", "tests/cli", "tests/export", "tests/evaluation", "tests/report"]
LIBRARIES += ["tests/data/test_tokenizer.py", "tests/formats", "tests/test_older_versions.py"]
SHOWN: tuple[str, ...] = (
    "jinja2",
    "matplotlib",
    "numpy",
    "pyarrow",
    "pydantic",
    "pyyaml",
    "rich",
    "safetensors",
)
SHOWN += ("scipy", "tokenizers", "torch", "transformers", "typer")


@dataclass(frozen=True)
class Step:
    """A command, and what it is for."""

    name: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)


def steps() -> Iterator[Step]:
    """All that `make test-all` does, once the environments are there."""
    test, oldest, newest = (f".venv-{name}/bin/python" for name in ("test", "oldest", "newest"))
    fresh = {"CRAMMED_TESTS_FORK": "0"}
    yield Step("make test", ["make", "test"])
    yield Step("long tests", [test, *PYTEST, "-m", "long"])
    yield Step("a fresh interpreter for every command", [test, *PYTEST, *COMMANDS], fresh)
    yield Step("the oldest libraries", [oldest, *PYTEST, *LIBRARIES])
    yield Step("the newest libraries", [newest, *PYTEST, *LIBRARIES])


def run(step: Step) -> tuple[bool, str]:
    """Run a step, showing what it prints; whether it passed, and its last word in a line or two."""
    began, last = time.monotonic(), ""
    shown = " ".join((*(f"{k}={v}" for k, v in step.environment.items()), *step.command))
    print(f"\n=== {step.name}: {shown}", flush=True)
    with subprocess.Popen(
        step.command,
        cwd=ROOT,
        env={**os.environ, **step.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            if re.search(r"\d+ (passed|failed|error)", line):
                last = re.sub(r" in [\d.]+s.*", "", line).strip("= \n")
    minutes = (time.monotonic() - began) / 60
    verdict = "passed" if process.returncode == 0 else f"FAILED with {process.returncode}"
    return (
        process.returncode == 0,
        f"{step.name}: {verdict}, {minutes:.1f} min\n  {shown}\n  {last}\n",
    )


def versions(python: str) -> str:
    """Versions of what an environment has, of what the package needs."""
    code = f"for name in {SHOWN}: print(name, metadata.version(name), end='  ')"
    code = f"from importlib import metadata\n{code}"
    done = subprocess.run(
        [python, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def commit() -> str:
    """The commit that is tested, and whether something differs from it."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", ".", ":!records/test-all"])
    return head.stdout.strip()[:12] + (" with changes" if changed.returncode else "")


def main() -> None:
    began = datetime.now(UTC)
    results = [run(step) for step in steps()]
    lines = [
        f"date      {began:%Y-%m-%d %H:%M} UTC",
        f"commit    {commit()}",
        f"machine   {platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        f"python    {platform.python_version()}",
        *(
            f"{name:<10}{versions(f'.venv-{name}/bin/python')}"
            for name in ("test", "oldest", "newest")
        ),
        "",
        *(words for _, words in results),
    ]
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text("\n".join(lines), "utf-8")
    print(f"\n{OUTPUT.read_text('utf-8')}\nwritten to {OUTPUT.relative_to(ROOT)}: commit it")
    sys.exit(0 if all(passed for passed, _ in results) else 1)


if __name__ == "__main__":
    main()
