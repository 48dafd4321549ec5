"""Masking of personal data."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from crammed.config import CleanConfig
from crammed.data.corpus import Corpus
from crammed.data.heldout import heldout_texts
from crammed.data.preparing.cleaning.personal import masked
from crammed.data.preparing.cleaning.steps import clean, steps_of
from crammed.data.preparing.select.given_heldout import GivenHeldout
from crammed.data.show import describe_corpus, dropped_samples
from support.corpora import step_of
from support.text import documents, tiny, write_jsonl

WORDS = {
    "e": "email address",
    "i": "IP address",
    "p": "phone number",
    "a": "account number",
    "c": "card number",
}
LABELLED = """
Write to <e:jane.doe@example.com>, <e:J_D+news@mail.example.co.uk> or <e:info@müller-söhne.de>.
E-Mail: <e:redaktion@zeitung.example.at>. <a href="mailto:<e:x@y.example.org>">mail</a>
邮箱<e:zhang.wei@example.com.cn>。电话<p:+86 10 6552 9988>转<p:010-65529988>。
From: "Bob" <<e:bob%work@lists.example.net>> and <e:anna@example.museum>;<e:ben@example.io>
<p:+49 30 1234567>, <p:+1 (212) 555-0123>, <p:+1.212.555.0134>, <p:+44 20 7946 0958>,
<p:+33 1 23 45 67 89>
Call <p:(212) 555-0123> or <p:212-555-0187>, in the evening <p:1-800-555-0199>;
or <p:646.555.0101>.
Tel.: <p:030 1234567>, Fax: <p:0711/12 34 56-0>, mobil <p:0171-1234567>, Telefon <p:(030) 123456>
Téléphone : <p:01 23 45 67 89>; London <p:020 7946 0958>; Wien <p:01 58858-0>; Phone <p:555-0123>
Ring <p:08457 90 90 90>, <p:0049 89 1234567> or <p:+81-3-1234-5678>, mobile <p:+91 98765 43210>
Rufen Sie uns an: <p:0221 / 123 45 67>. Hotline <p:0800 3301000> (frei). Tel <p:43 1 58858>
phone <p:2125550123> and, without a word before it, <p:2125550177>
IBAN <a:DE89 3704 0044 0532 0130 00>, BIC COBADEFF. <a:GB29NWBK60161331926819>
and <a:FR14 2004 1010 0505 0001 3M02 606>
To <a:BE68 5390 0754 7034> THIS from <a:NL91ABNA0417164300>, <a:NO93 8601 1117 947>;
<a:CH93-0076-2011-6238-5295-7>
iban <a:de89370400440532013000> in small letters
Card <c:4111 1111 1111 1111> 12/27, <c:5555555555554444>, <c:3782 822463 10005>,
<c:6011-1111-1111-1117>
<c:2223003122003222>, <c:30569309025904>
Connection from <i:93.184.216.34> port 22;
http://<i:142.250.185.78>/x and [<i:2606:2800:220:1:248:1893:25c8:1946>]:80
<i:2a00:1450:4001:82f::200e> answered <i:185.199.108.153>, not <i:8.8.8.8>.
jane (at) example (dot) com: <e:jane at example dot com>, by hand <e:jane[at]example.com>
Version 3.51.98.32, release 10.0.19041.1, section 4.2.1.3, OID 1.3.6.1.4.1.311, 192.168.178.1,
127.0.0.1
libX11 1.1.99.2 and V8 6.5.254.40 (true of many versions); at 12:30:45; ratio 16:9;
std::vector<int>; ::1; fe80::1; a::b
On 2023-10-06, 06.10.2023, 06/10/2023 10:30, 01-02-2003; 1990-1995 and 2010-2015; 5. 12. 1999
$1,000,000,000; 1 234 567 people; 1.234.567,89 €; 100 000 000; +12.345.678; 3.14159265358979
ISBN 978-3-16-148410-0, ISBN 0-306-40615-2, ISSN 0317-8471, DOI 10.1000/182, arXiv 2301.00001
Order 4111111111111112, serial 1234567890123456, tracking 00340434161094042557,
id 5718889451749376
MA 02111-1307, USA; 10117 Berlin; UPC 036000291452; GB12 3456 7890 1234 is no account;
DE 123456789
icon@2x.png, @user, git rebase HEAD@{1}, a@b, 3@5, [email] and foo@ bar; {@link Foo.bar@baz}
0x1F600 1e-10 5.5e+12 2^32 = 4294967296; 1/2, 3/4; 12345678901234567890; 10-12-14 years; 24/7
matrix 1 0 0 1 0 1 1 0 0 1; scores 571 612 1056; bytes 01 02 03 04 05;
6282 6319 6357 6394 6432 6469
Pi is 3,1415926 and e 2.718281828; the years 1999 2000 2001; from 0800 to 1730; RFC 2119; § 823
ABCD12EFGH34 XY99 0000 1111 2222 3333; commit 0040030443; 20191229111838; 1570352400; 0815-4711
"""
LABEL = re.compile(r"<([eipac]):([^<>]+)>")
PUBLISHED = {"found": 53, "missed": 6, "wrong": 3}
"""As docs/data.md says."""


def counts() -> dict[str, int]:
    """How many labelled pieces are found and missed, and how much else is masked."""
    found, wrong = Counter[bool](), 0
    for line in LABELLED.strip().splitlines():
        after = masked(LABEL.sub(lambda label: label[2], line))
        own = Counter(label[2] not in after for label in LABEL.finditer(line))
        wrong += sum(map(after.count, WORDS.values())) - own[True]
        found += own
    return {"found": found[True], "missed": found[False], "wrong": wrong}


def test_precision_and_recall_are_as_published() -> None:
    assert counts() == PUBLISHED


def test_each_kind_has_words_of_its_own() -> None:
    for line in LABELLED.split("\niban")[0].strip().splitlines()[:3]:
        words = LABEL.sub(lambda label: WORDS[label[1]], line)
        assert masked(LABEL.sub(lambda label: label[2], line)) == words


PIECES = (
    *("+49 30 1234567", "(212) 555-0123", "555-0123", "020 7946 0958", "93.184.216.34", "1.2.3.4"),
    *("4111 1111 1111 1111", "4111111111111111", "GB29NWBK60161331926819", "BE68 5390 0754 7034"),
    *("2a00:1450:4001:82f::200e", "jane@example.com", "@example.org", "tel", "Tel. ", "version "),
    *("FAX: ", "a", "Z", "7", "34", "1990", "+", "(", ")", " ", " ", " ", "-", ".", ",", ":", "/"),
    *("@", "_", "%", "\n", "é", "电", "٣"),
)


@given(st.one_of(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), st.text()))
@example("a@malicious.org@important.com")
@example("020 7946 0958 (030) 1234567")
@example("4111 1111 1111 1111 4111 1111 1111 1111")
def test_masking_twice_changes_nothing(text: str) -> None:
    once = masked(text)
    assert masked(once) == once


@given(st.text(st.characters(exclude_categories=["Nd"], exclude_characters="@")))
def test_text_without_digits_and_addresses_is_unchanged(text: str) -> None:
    assert masked(text) == text


@pytest.mark.parametrize("piece", ["a", "a.a@", "1", "1 ", "1.", "(1-", "+", "AB12", "2000:"])
def test_time_is_linear(piece: str) -> None:
    """With a pattern that takes quadratic time, this would take many minutes."""
    text = piece * (400_000 // len(piece))
    assert masked(f"@1 {text}")


def test_masks_are_counted_and_shown(make_corpus: Callable[..., Corpus]) -> None:
    texts = [f"{text} {text} Write to jane{n}@example.com." for n, text in enumerate(documents(20))]
    others = documents(200, seed=1)
    corpus = make_corpus([*texts, *others, "jane@example.com"], "data.clean.personal=mask")
    step = step_of(corpus, "personal")
    assert (step["kept"], step["dropped"], step["changed"]) == (221, 0, 21)
    assert "personal: 21 documents changed" in " ".join(dict(describe_corpus(corpus))["dropped"])
    shown = [
        each["text"] for each in dropped_samples(corpus) if each["step"] == "personal, changed"
    ]
    assert shown
    assert all("email address" in text for text in shown)


def test_neither_samples_nor_heldout_text_have_personal_data(tmp_path: Path) -> None:
    config = CleanConfig(personal="mask", min_characters=50)
    verdict = clean("Write to jane@example.com.", steps_of(config))
    assert (verdict.text, verdict.dropped_by) == ("Write to email address.", "length")
    held = write_jsonl(tmp_path / "held.jsonl", ["Write to jane@example.com. " * 50])
    given = tiny("crammed", "data.clean.personal=mask", data={"sources": [str(held)]}).data
    (text,) = heldout_texts(GivenHeldout.read(given, tmp_path).file)
    assert text == ("Write to email address. " * 50).rstrip()
