"""What a user installs: the wheel, its page on an index, and the container."""

from __future__ import annotations

import ast
import email.message
import email.parser
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    pytest.importorskip("hatchling")
    pytest.importorskip("hatch_fancy_pypi_readme")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (file,) = folder.glob("*.whl")
    return zipfile.ZipFile(file)


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> email.message.Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return email.parser.Parser().parsestr(wheel.read(name).decode())


def test_the_wheel_holds_the_whole_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    files = {str(f.relative_to(ROOT / "src")) for f in (ROOT / "src/crammed").rglob("*")}
    files = {name for name in files if (ROOT / "src" / name).is_file() and ".pyc" not in name}
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == files
    (entry,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "crammed = crammed.__main__:main" in wheel.read(entry).decode()


def test_the_page_on_an_index_stands_alone(metadata: email.message.Message) -> None:
    page = metadata.get_payload()
    assert isinstance(page, str)
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert re.findall(r"\]\((?!https?://)", page) == []  # the pages of docs/ are not there
    assert "<!--" not in page
    assert "docs/recipe.md" in page
    assert "pip install" in page
    assert page.index("pip install") < page.index("make demo")


def test_the_versions_of_python_agree(metadata: email.message.Message) -> None:
    classified = [each.rsplit(" ", 1)[-1] for each in metadata.get_all("Classifier", [])]
    assert [each for each in classified if each.startswith("3.")] == ["3.11", "3.12", "3.13"]
    assert metadata["Requires-Python"] == ">=3.11"


def test_what_we_name_is_an_extra() -> None:
    """Every ``crammed[...]`` in the code, the pages and the Dockerfile."""
    files = [*ROOT.glob("src/**/*.py"), *ROOT.glob("docs/*.md"), ROOT / "README.md"]
    text = "\n".join(file.read_text("utf-8") for file in (*files, ROOT / "Dockerfile"))
    named = re.findall(r"(?:crammed|'\.)\[([\w,]+)\]", text)
    named += re.findall(r"import_extra\(\s*\"[\w.]+\", \"(\w+)\"", text)
    extras = {each for group in named for each in group.split(",")}
    assert len(extras) > 10
    assert extras <= PROJECT["optional-dependencies"].keys()


def test_what_the_code_imports_is_a_dependency() -> None:
    """At the top of a file a core dependency, or one of its parts; in functions those of extras."""
    called = {"pyyaml": "yaml", "scikit-learn": "sklearn"}

    def libraries(needed: Iterable[str]) -> set[str]:
        names = {re.match(r"[\w-]+", each)[0] for each in needed}  # type: ignore[index]
        return {called.get(name, name.replace("-", "_")) for name in names}

    core = {"crammed", "pydantic_core", *libraries(PROJECT["dependencies"])}
    extras = [each for each in PROJECT["optional-dependencies"].values() for each in each]
    every = {*core, "huggingface_hub", *libraries(extras)}
    late, wrong = set(), []
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            found = {name.partition(".")[0] for name in names} - sys.stdlib_module_names - core
            late |= found
            if found - every or (found and not node.col_offset):  # type: ignore[attr-defined]
                wrong.append(f"{file.name}: {', '.join(found)}")
    # The first is no part of the program: it is for the folder of a model.
    assert wrong == ["modeling_crammed.py: transformers"] * 2
    assert {"scipy", "sklearn", "transformers"} <= late


def test_the_dockerfile_copies_what_is_there() -> None:
    text = (ROOT / "Dockerfile").read_text("utf-8")
    kept = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    copied = re.findall(r"^COPY (.+)$", text, re.MULTILINE)
    names = [name for words in copied for name in words.split()[:-1]]
    assert {"src", "pyproject.toml"} <= set(names)
    for name in names:
        assert (ROOT / name).exists()
        assert f"!{name}" in kept
    (python,) = re.findall(r"^FROM python:([\d.]+)-slim$", text, re.MULTILINE)
    assert f"Programming Language :: Python :: {python}" in PROJECT["classifiers"]
    assert 'ENTRYPOINT ["crammed"]' in text
    assert all(line.startswith("#") or "latest" not in line for line in text.splitlines())
