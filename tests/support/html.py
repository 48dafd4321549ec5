"""Checks of HTML pages."""

from __future__ import annotations

from html.parser import HTMLParser


class _Tags(HTMLParser):
    VOID = ("meta", "br", "path", "use", "link")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def check_balanced(page: str) -> str:
    """The page, every tag of which must be closed, and in order."""
    tags = _Tags()
    tags.feed(page)
    tags.close()
    assert not tags.open
    return page
