"""What `mkdocs.yml` needs besides the pages: README.md is the first one, and links stay inside.

Files of the repository that are no pages, such as records, are named there without a link.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STYLE = ".rst-content table.docutils td, .rst-content table.docutils th { white-space: normal; }\n"
"""The theme would have each cell of a table in one line."""


def on_files(files: Any, config: Any) -> Any:
    """Add README.md, as the page that a browser opens, and a style sheet."""
    from mkdocs.structure.files import File

    text = (ROOT / "README.md").read_text("utf-8")
    files.append(File.generated(config, "index.md", content=as_page(text)))
    files.append(File.generated(config, "site.css", content=STYLE))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Leave out links to files above docs/."""
    return re.sub(r"\[([^\]]+)\]\(\.\./[^)]+\)", r"\1", markdown)


def as_page(readme: str) -> str:
    others = re.sub(r"\]\((?!docs/|https?://|#)", "](../", readme)
    return others.replace("](docs/", "](")
