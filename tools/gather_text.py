"""Gathers text in a language from translations that Debian ships: catalogues, manuals, help pages.

    python tools/gather_text.py ja ja.jsonl --characters 2000000 --one-line

Packages are fetched with `apt-get download` and unpacked in a temporary folder, so nothing is
installed; it needs a Debian system whose package lists are up to date. Packages that a language
does not have are left out. Beside the text, FILE.sources.json names each package with its version,
documents and characters.
"""

from __future__ import annotations

import gzip
import json
import re
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Annotated

import typer

EVERY_LANGUAGE = (
    "evolution-common",
    "gnucash-common",
    "gnome-user-docs",
    "iso-codes",
    "libgtk-3-common",
    "nautilus-data",
)
"""Packages that hold all languages."""
ONE_LANGUAGE = ("libreoffice-l10n", "libreoffice-help", "manpages", "debian-reference")
"""Packages that end in the code of a language."""
DOCUMENT = 2000
"""Characters of one document, roughly: messages and lines are joined until they reach this."""
_SKIPPED = {"script", "style", "head", "nav"}
_BLOCKS = {"p", "div", "li", "td", "th", "title", "h1", "h2", "h3", "h4", "dt", "dd", "pre", "item"}


Records = list[dict[str, str]]


def gather(code: str, *, ascii_lines: bool = True) -> tuple[Records, list[dict[str, object]]]:
    """The documents of a language, and what each package contributed.

    Args:
        ascii_lines: keep lines whose letters are all in ASCII, which in languages with letters of
            their own were not translated.
    """
    packages = (*EVERY_LANGUAGE, *(f"{name}-{code.lower()}" for name in ONE_LANGUAGE))
    seen: set[str] = set()
    records: Records = []
    found: list[dict[str, object]] = []
    for package in packages:
        with tempfile.TemporaryDirectory() as folder:
            version = _unpack(package, Path(folder))
            if version is None:
                continue
            lines = _lines(Path(folder), code)
            if not ascii_lines:
                lines = filter(_has_letters_of_its_own, lines)
            texts = list(_documents(lines, seen))
        if texts:
            records += [{"text": text, "package": package} for text in texts]
            counts = {"documents": len(texts), "characters": sum(map(len, texts))}
            found.append({"package": package, "version": version, **counts})
    return records, found


def thin(records: Records, characters: int | None) -> Records:
    """About this many characters of them, spread evenly."""
    total = sum(len(each["text"]) for each in records)
    step = max(1.0, total / characters) if characters else 1.0
    return [records[int(number * step)] for number in range(int(len(records) / step))]


def _unpack(package: str, folder: Path) -> str | None:
    """Unpack a package into a folder and return its version; None if there is none."""
    done = subprocess.run(["apt-get", "download", package], cwd=folder, capture_output=True)
    files = list(folder.glob("*.deb"))
    if done.returncode or not files:
        return None
    subprocess.run(["dpkg-deb", "-x", files[0].name, "."], cwd=folder, check=True)
    shown = subprocess.run(
        ["dpkg-deb", "-f", files[0].name, "Version"], cwd=folder, check=True, capture_output=True
    )
    return shown.stdout.decode().strip()


def _lines(folder: Path, code: str) -> Iterator[str]:
    """The lines of all files in this language, in the order of their paths."""
    spelled = {code, code.replace("-", "_"), code.split("-")[0], code.lower()}
    if code.startswith("en"):
        spelled.add("C")  # the folder of pages that were written in English
    for file in sorted(folder.rglob("*")):
        if not file.is_file() or file.is_symlink():
            continue
        if not spelled & {*file.relative_to(folder).parts, *file.name.split(".")}:
            continue
        if file.suffix == ".mo":
            yield from _messages(file.read_bytes())
        elif file.suffix in (".html", ".page"):
            page = _Page()
            page.feed(file.read_text("utf-8", "replace"))
            yield from page.lines
        elif re.search(r"/man\d/", str(file)) and file.suffix == ".gz":
            yield from _manual(gzip.decompress(file.read_bytes()).decode("utf-8", "replace"))


def _messages(data: bytes) -> Iterator[str]:
    """The translations of a compiled catalogue, except those that equal the original."""
    order = "<" if data[:4] == b"\xde\x12\x04\x95" else ">"
    count, originals, translations = struct.unpack(f"{order}3I", data[8:20])
    for number in range(1, count):  # the first is the header
        original, translation = (
            data[at : at + length]
            for place in (originals, translations)
            for length, at in (struct.unpack_from(f"{order}2I", data, place + 8 * number),)
        )
        if original != translation:
            for text in translation.decode("utf-8", "replace").split("\0"):
                yield from re.sub(r"<[^>]*>|[_~&](?=\w)", "", text).splitlines()


class _Page(HTMLParser):
    """Collects the text of a page, one line for each block."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = [""]
        self._skipping = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._skipping += tag in _SKIPPED
        if tag in _BLOCKS:
            self.lines.append("")

    def handle_endtag(self, tag: str) -> None:
        self._skipping -= tag in _SKIPPED and self._skipping > 0
        if tag in _BLOCKS:
            self.lines.append("")

    def handle_data(self, data: str) -> None:
        if not self._skipping:
            self.lines[-1] += data


def _manual(text: str) -> Iterator[str]:
    """The text of a manual page, roughly: a line for each paragraph."""
    paragraph: list[str] = []
    for line in text.splitlines():
        request, _, words = line.partition(" ")
        if line.startswith((".\\", "'\\")):
            continue
        if request in (".B", ".I", ".BR", ".IR", ".RB", ".RI", ".BI", ".IB"):
            line = words
        elif line.startswith("."):
            yield _plain(" ".join(paragraph))
            paragraph, line = [], words if request in (".SH", ".SS") else ""
        paragraph.append(line)
    yield _plain(" ".join(paragraph))


def _plain(text: str) -> str:
    text = re.sub(r"\\f(\[\w*\]|\(..|.)|\\[&/,%]|\\s[-+]?\d+", "", text)
    text = re.sub(r"\\\((\w\w)|\\\[\w+\]", "", text).replace("\\-", "-").replace("\\e", "\\")
    return text.replace('"', "")


def _has_letters_of_its_own(line: str) -> bool:
    return any(each.isalpha() and not each.isascii() for each in line)


def _documents(lines: Iterator[str], seen: set[str]) -> Iterator[str]:
    document: list[str] = []
    for line in lines:
        line = " ".join(line.split())
        if not any(map(str.isalpha, line)) or line in seen:
            continue
        seen.add(line)
        document.append(line)
        if sum(map(len, document)) >= DOCUMENT:
            yield "\n".join(document)
            document = []
    if document:
        yield "\n".join(document)


def main(
    language: Annotated[str, typer.Argument(help="As Debian spells it: de, zh-CN, en-US.")],
    file: Path,
    characters: Annotated[int | None, typer.Option(help="Keep so many, spread evenly.")] = None,
    one_line: Annotated[bool, typer.Option("--one-line", help="No line breaks.")] = False,
    ascii_lines: Annotated[bool, typer.Option(help="Keep lines with ASCII letters alone.")] = True,
) -> None:
    records, found = gather(language, ascii_lines=ascii_lines)
    if not found:
        raise SystemExit(f"no package holds text in {language}")
    with file.open("w", encoding="utf-8") as out:
        for record in thin(records, characters):
            # On one line, tokenizers that keep line breaks can be compared with those that do not.
            text = record["text"].replace("\n", " ") if one_line else record["text"]
            out.write(json.dumps({**record, "text": text}, ensure_ascii=False) + "\n")
    file.with_suffix(".sources.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    for each in found:
        print(*each.values(), sep="\t")


if __name__ == "__main__":
    typer.run(main)
