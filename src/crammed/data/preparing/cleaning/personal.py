"""Masks personal data: addresses of e-mail and the internet, account, card and telephone numbers.

Each becomes ordinary words, such as "email address": nothing rare enters the vocabulary, the text
still reads as a sentence, and there are no marks that other steps would count.

Numbers are masked only where their form says what they are: the checksum of an account or a card
must be right, an internet address be public, and a telephone number be written like one.

A pattern takes the longest run of characters that could be such data, and the run is then judged as
a whole. So time is linear in the text. Masking twice changes nothing: a number counts only if no
letter, no digit and nothing of an e-mail address is beside it, and a mask ends in letters itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address

_Match = re.Match[str]


def masked(text: str) -> str:
    """The text with words in place of personal data."""
    if "@" in text:
        text = _EMAIL.sub(_email, text)
    if _DIGIT.search(text):
        text = _without_accounts(text)
        for run, is_personal, words in _NUMBERS:
            text = run.sub(_by(is_personal, words), text)
    return text


def _by(is_personal: Callable[[_Match], bool], words: str) -> Callable[[_Match], str]:
    return lambda found: words if is_personal(found) else found[0]


_DIGIT = re.compile("[0-9]")


# ---- e-mail

_LETTERS = "A-Za-z\u00c0-\u024f"
"""Of addresses. Others may stand right beside one, where no spaces separate words."""
_IN_EMAIL = f"[{_LETTERS}0-9._%+-]"
_EMAIL = re.compile(rf"{_IN_EMAIL}(?<!{_IN_EMAIL}.)(?<!@.){_IN_EMAIL}*+(?:@{_IN_EMAIL}*+)++")
_DOMAIN = re.compile(rf"[{_LETTERS}0-9-].*\.([{_LETTERS}]{{2,}})(?![{_LETTERS}0-9])")
_NO_DOMAINS = {"png", "jpg", "jpeg", "gif", "webp", "svg", "js", "css", "html", "php", "py"}
"""What ends names of files, such as icon@2x.png."""


def _email(found: _Match) -> str:
    """What is left of a run with one or more @, some of which domains follow."""
    parts = found[0].split("@")
    for number in range(len(parts) - 1, 0, -1):
        domain = _DOMAIN.match(parts[number])
        if domain is not None and domain[1].lower() not in _NO_DOMAINS:
            return "@".join(["email address" + parts[number][domain.end() :], *parts[number + 1 :]])
    return found[0]


_BESIDE = re.compile(rf"[,@]|{_IN_EMAIL}")
_END = re.compile(rf"[.,-](?!@|{_IN_EMAIL})")


def _stands_alone(text: str, start: int, end: int) -> bool:
    """Whether characters are no part of a word, a longer number, or what has an @.

    A mark may follow, such as the full stop of a sentence.
    """
    before, after = text[max(0, start - 1) : start], text[end : end + 2]
    return not _BESIDE.match(before) and bool(not _BESIDE.match(after) or _END.match(after))


# ---- accounts and cards

_IBAN_START = re.compile(r"(?a)[A-Z](?<!\w.)[A-Z][0-9]{2}")
_IBAN_REST = re.compile(r"(?:[ -]?[A-Z0-9]){11,30}")
_IBAN_LENGTHS = {
    15: "NO",
    16: "BE",
    18: "DK FI FO GL NL",
    19: "MK SI",
    20: "AT BA EE KZ LT LU XK",
    21: "CH HR LI LV",
    22: "BG BH CR DE GB GE IE ME RS VA",
    23: "AE GI IL IQ TL",
    24: "AD CZ ES MD PK RO SA SE SK TN VG",
    25: "LY PT ST",
    26: "IS TR",
    27: "FR GR IT MC MR SM",
    28: "AL AZ BY CY DO GT HU LB PL SV",
    29: "BR EG PS QA UA",
    30: "JO KW MU",
    31: "MT SC",
    32: "LC",
}
_IBAN_LENGTH = {country: n for n, some in _IBAN_LENGTHS.items() for country in some.split()}
"""Characters of account numbers by country, from the registry of ISO 13616."""


def _without_accounts(text: str) -> str:
    kept, place = [], 0
    for found in _IBAN_START.finditer(text):
        if found.start() >= place and (end := _end_of_iban(text, found)):
            kept += [text[place : found.start()], "account number"]
            place = end
    return "".join([*kept, text[place:]]) if place else text


def _end_of_iban(text: str, start: _Match) -> int:
    """Where a valid account number that starts here ends; 0 if there is none."""
    length = _IBAN_LENGTH.get(start[0][:2], 0)
    rest = _IBAN_REST.match(text, start.end())
    if not length or rest is None:
        return 0
    places = [place for place in range(*rest.span()) if text[place].isalnum()][: length - 4]
    number = "".join(text[place] for place in places) + start[0]
    end = places[-1] + 1
    if len(number) < length or not _stands_alone(text, start.start(), end):
        return 0
    remainder = int("".join(str(int(character, 36)) for character in number)) % 97
    return end if remainder == 1 else 0


_CARD = re.compile(
    r"(?a)[2-6](?<![\w.,/-].)(?<!\d{4}[ -].)\d{3}"
    r"(?:\d{10,12}|([ -])(?:\d{4}\1\d{4}\1\d{4}|\d{6}\1\d{4,5}))(?!\d|[ -]\d{4})"
)
_ISSUERS = re.compile("4|5[1-5]|2[2-7]|3[0-9]|6011|6[245]")
"""The first digits of cards."""
_CARD_LENGTHS = {"2": (16,), "3": (14, 15, 16), "4": (16,), "5": (16,), "6": (16,)}


def _is_card(found: _Match) -> bool:
    """Whether Luhn's checksum is right, and an issuer has numbers of this length."""
    digits = [int(character) for character in found[0] if character.isdigit()]
    doubled = [2 * digit - 9 * (digit > 4) for digit in digits[-2::-2]]
    return (
        _ISSUERS.match(found[0]) is not None
        and len(digits) in _CARD_LENGTHS[found[0][0]]
        and (sum(doubled) + sum(digits[-1::-2])) % 10 == 0
        and _stands_alone(found.string, *found.span())
    )


# ---- internet addresses

_IP4 = re.compile(r"[0-9](?<![0-9].)[0-9]*+(?:\.[0-9]++)++")
_IP6 = re.compile(r"(?a)[23](?<![\w:.].)[0-9A-Fa-f]{3}:[0-9A-Fa-f:]*+")
_VERSION = re.compile(r"(?:version|release|build|\bver\.?|\bv\.?)[ :=]*$", re.IGNORECASE)


def _is_ip4(found: _Match) -> bool:
    """Whether it is public, and not like the number of a version or a section, as 4.2.1.35 is."""
    with suppress(ValueError):
        address = IPv4Address(found[0])
        before = found.string[max(0, found.start() - 12) : found.start()]
        large = sum(number > 31 for number in address.packed)
        return (
            address.is_global
            and large > 1
            and not _VERSION.search(before)
            and _stands_alone(found.string, *found.span())
        )
    return False


def _is_ip6(found: _Match) -> bool:
    with suppress(ValueError):
        several = len(found[0].replace(":", " ").split()) > 2
        return (
            several
            and IPv6Address(found[0]).is_global
            and _stands_alone(found.string, *found.span())
        )
    return False


# ---- telephone numbers

_PHONE = re.compile(r"[+(]?\(?[0-9](?:(?: / |[ ./-]?\(|\)?[ ./-]?)[0-9])*+")
_ABROAD = re.compile(r"(?:\+|00)[1-9](?:\D{0,3}\d){7,14}")
_AMERICAN = re.compile(
    r"(?:1[ .-])?(?:\([2-9]\d\d\) ?[2-9]\d\d[ .-]|[2-9]\d\d([ .-])[2-9]\d\d\1)\d{4}"
)
_NATIONAL = re.compile(r"\(?0[1-9]\d{0,4}\)?(?:[ /-]{1,3}\d{2,8}){1,5}")
_CALLED = re.compile(
    r"\b(?:tel|t\u00e9l|telefon|telephone|t\u00e9l\u00e9phone|phone|fax|mobil|mobile|cell)\.?:? ?$",
    re.IGNORECASE,
)
_AMOUNT = re.compile(r"(?:\+|00)\d{1,3}(?:\.\d{3})+")
_ZIP = re.compile(r"\d{5}-\d{4}")
_YEAR = re.compile(r"(?<!\d)(?:19|20)\d\d(?!\d)")


def _is_phone(found: _Match) -> bool:
    """Whether it has a form of telephone numbers, or words before it say that it is one."""
    number = found[0]
    digits = sum(map(str.isdigit, number))
    beside = found.string[max(0, found.start() - 1) : found.start()]
    if (
        not 6 <= digits <= 15
        or beside in ("/", "~", "-")
        or not _stands_alone(found.string, *found.span())
    ):
        return False
    if _ABROAD.fullmatch(number):
        return not (number.isdigit() or _AMOUNT.fullmatch(number))
    if _AMERICAN.fullmatch(number):
        return True
    if _YEAR.search(number) or _ZIP.fullmatch(number):
        return False
    before = found.string[max(0, found.start() - 16) : found.start()]
    is_national = 9 <= digits <= 12 and _NATIONAL.fullmatch(number) is not None
    return is_national or _CALLED.search(before) is not None


_NUMBERS = (
    (_IP6, _is_ip6, "IP address"),
    (_IP4, _is_ip4, "IP address"),
    (_CARD, _is_card, "card number"),
    (_PHONE, _is_phone, "phone number"),
)
