"""Markdown, reStructuredText and web pages become the text that a reader sees."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crammed.formats import lines
from crammed.formats.markdown import text_of_markdown
from crammed.formats.restructured import text_of_restructured
from crammed.formats.web import text_of_page
from support.samples import PAGE, read, refusal, web_archive

MARKDOWN = r"""---
title: front matter
---
# Head *x*

Para one
still [a link](http://x) and `code()` ![what](i.png)\
broken <b>bold</b>, 2 * 3 and snake_case_name.

- a
- b
  - c

1. x

   y

| a | b |
|---|---|
| 1 | **2** |

> quoted ~~not~~

```py
x = 1  # *kept*

y
```

<p align=center>centred <i>text</i></p>
<!-- a comment -->

[ref]: http://y
"""
AS_READ = """Head x

Para one
still a link and code() what
broken bold, 2 * 3 and snake_case_name.

a
b
c

x

y

a\tb
1\t2

quoted not

x = 1  # *kept*

y

centred text"""

RESTRUCTURED = r"""
:orphan:

.. _intro:

============
Introduction
============

This *is* **bold** and ``x_ = **kw`` with :func:`~os.path.join`, :ref:`a section <sec>` and
`Python <https://python.org>`_; see [1]_, link_ and |version|. A_b_c stay\ s, 2*3*4 too, and *over
lines*. - not a bullet

.. note:: Read this.
   More of it.

.. a comment that

   goes on

.. code-block:: python
   :linenos:

   def f(**kwargs):
       return `x`

Like this::

    a_ = *b*

.. function:: join(a, b)
   :noindex:

   Join them.

.. image:: x.png
   :alt: nothing

* item one
  goes on
* item two

+-----+-----+
| a   | b   |
+=====+=====+
| 1   | 2   |
+-----+-----+

.. [1] The note.
.. _link: http://x

Wait...
"""
AS_SEEN = """Introduction

This is bold and x_ = **kw with join, a section and
Python; see, link and version. A_b_c stays, 2*3*4 too, and over
lines. - not a bullet

Read this.
More of it.

   def f(**kwargs):
       return `x`

Like this:

    a_ = *b*

join(a, b)

Join them.

item one
goes on
item two

a\tb
1\t2

The note.

Wait..."""


def test_markdown() -> None:
    assert text_of_markdown(MARKDOWN) == AS_READ
    assert text_of_markdown(MARKDOWN.replace("\n", "\r\n")) == AS_READ
    assert text_of_markdown(AS_READ.partition("\n\na\tb")[0]) == AS_READ.partition("\n\na\tb")[0]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("---\n\nOne.\n\n---\n\nTwo.", "One.\n\nTwo."),
        ("---\nHe said, at last: go.\n\n---\nTwo.", "He said, at last: go.\n\nTwo."),
        ("---\n# One\n\nText.\n\n---\nTwo.", "One\n\nText.\n\nTwo."),
        ('---\n# a comment\n"key": x\n\nother: y\n---\nTwo.', "Two."),
        ("---\n---\nTwo.", "Two."),
        ("---\nkey:\n  - x\n...\nTwo.", "Two."),
    ],
)
def test_a_rule_in_the_first_line_begins_no_front_matter(content: str, text: str) -> None:
    assert text_of_markdown(content) == text


def test_restructured_text() -> None:
    assert text_of_restructured(RESTRUCTURED) == AS_SEEN


@pytest.mark.parametrize("mark", ["*", "``"])
def test_marks_too_far_apart_are_text(mark: str) -> None:
    """Or else text that opens many and ends none would take forever."""
    near, far = ("word " * count + "end" for count in (190, 210))
    assert text_of_restructured(f"{mark}{near}{mark}") == near
    assert text_of_restructured(f"{mark}{far}{mark}") == f"{mark[0]}{far}{mark[0]}"


@given(st.text("*_`:.|\\[]<>=-# \n\tab1"))
def test_any_text_is_markup(text: str) -> None:
    text_of_restructured(text)
    text_of_markdown(text)
    letters = "".join(filter(str.isalnum, text_of_markdown(text)))
    assert len(letters) <= len(text)


@pytest.mark.parametrize("name", ["a.md", "a.markdown", "a.rst", "a.md.gz"])
def test_a_file_is_a_document_unless_another_division_is_named(tmp_path: Path, name: str) -> None:
    content = b"One *a*.\r\n\r\nTwo\r\nlines.\r\n"
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert read(tmp_path / name) == ["One a.\n\nTwo\nlines."]
    assert read(tmp_path / name, documents="blank-line") == ["One a.", "Two\nlines."]
    assert read(tmp_path / name, documents="line") == ["One a.", "", "Two", "lines."]
    said = refusal(tmp_path / name, where={"a": ["b"]})
    assert f"{name} has no fields to filter by, as {'.rst' if '.rst' in name else '.md'}" in said


def test_pages_in_any_encoding(tmp_path: Path) -> None:
    for encoding in ("utf-8", "cp1252", "utf-16"):
        page = PAGE.replace("<body>", f"<head><meta charset={encoding}></head><body>")
        (tmp_path / "a.htm").write_bytes(page.encode(encoding))
        (text,) = read(tmp_path / "a.htm")
        assert text.split() == ["A", "title", "Some", "schön", "&", "long", "text."]
    assert "schön" in text_of_page(PAGE.encode(), "a"), "UTF-8 although no charset is named"


def test_a_page_whose_elements_are_too_deep_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(2500 * "<DIV>some</DIV>" + 490 * "<div>" + "text")
    assert read(tmp_path / "a.html")[0].endswith("text")
    for encoding in ("utf-8", "utf-16"):
        (tmp_path / "a.html").write_text(2500 * "<div></p>" + "text", encoding)
        assert "a.html: a page whose elements are nested more than 500 deep" in refusal(
            tmp_path / "a.html"
        )


HTTP = "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=iso-8859-1\r\n"


def test_web_archives(tmp_path: Path) -> None:
    page = PAGE.encode("iso-8859-1")
    packed = gzip.compress(page)
    chunks = b"%x\r\n%b\r\n%x;note\r\n%b\r\n0\r\n\r\n" % (
        9,
        packed[:9],
        len(packed) - 9,
        packed[9:],
    )
    sent = f"{HTTP}Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    http = "application/http; msgtype=response"
    records = [
        ("warcinfo", "application/warc-fields", b"software: none\r\n"),
        ("request", "application/http; msgtype=request", b"GET / HTTP/1.1\r\n\r\n"),
        ("response", http, f"{HTTP}\r\n".encode() + page),
        ("response", http, sent + chunks),
        ("response", http, sent + page),  # stored as it was before it was sent
        ("response", http, HTTP.replace("text/html", "image/png").encode() + b"\r\n\x89PNG"),
        ("conversion", "text/plain", "Größe".encode()),
    ]
    file = tmp_path / "a.warc.gz"
    whole = web_archive(records)
    file.write_bytes(b"".join(gzip.compress(web_archive([each])) for each in records))
    texts = read(file)
    assert [text.split()[-1] for text in texts] == ["text.", "text.", "text.", "Größe"]
    assert all("schön & long" in text for text in texts[:-1])
    (tmp_path / "b.wet").write_bytes(whole)
    assert read(tmp_path / "b.wet") == texts
    (tmp_path / "b.wet").write_bytes(whole[:-8])
    assert "b.wet, record 7 is cut off" in refusal(tmp_path / "b.wet")
    assert read(tmp_path / "b.wet", unreadable="skip") == texts[:-1]
    (tmp_path / "b.wet").write_bytes(whole + b"junk")
    assert "record 8: no record of a web archive, or cut off" in refusal(tmp_path / "b.wet")


def test_only_long_records_with_text_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "LARGEST", 200_000)
    long, http = b"x" * 200_001, "application/http"
    film = HTTP.replace("text/html", "video/mp4").encode()
    harmless = [
        ("request", "text/plain", long),
        ("metadata", "application/warc-fields", long),
        ("response", http, film + b"\r\n" + long),
        ("resource", "image/png", long),
        ("conversion", "text/plain", b"One."),
    ]
    file = tmp_path / "a.warc"
    file.write_bytes(web_archive(harmless))
    assert read(file) == ["One."]
    file.write_bytes(web_archive([*harmless, harmless[3]])[:-9])
    assert "record 6 is cut off" in refusal(file)
    page = HTTP.encode() + b"\r\n" + long
    for record in (("response", http, page), ("conversion", "text/plain", long)):
        file.write_bytes(web_archive([*harmless, record]))
        assert "a.warc, record 6: longer than 200,000 bytes" in refusal(file)
        assert read(file, unreadable="skip") == ["One."]
