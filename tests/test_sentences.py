# ruff: noqa: RUF001  (letters of other scripts)

from __future__ import annotations

import pytest

from crammed.sentences import at_border, columns, is_word, sentences

# In each text a bar shows where a sentence ends.
SENTENCES = {
    "English": "He said “Stop!”| It cost 3.14 dollars, i.e. little.| Was it?| Yes.",
    "German": "Größe, z. B. am 3. Oktober, d. h. heute.| „Wirklich?“| Ja!",
    "Japanese": "これは文です。|次の文です！|「はい。」|終わり",
    "Chinese": "我们去学校。|你呢？|好",
    "Thai": "แมวนอนอยู่บนเสื่อ หมาวิ่งในสวน|บรรทัดใหม่",
    "Arabic": "القطة تجلس.| هل الكلب نائم؟| نعم",
    "Urdu": "یہ ایک جملہ ہے۔| دوسرا",
    "Hindi": "यह एक वाक्य है।| दूसरा वाक्य है॥| हाँ",
    "Armenian": "Սա է։| Այո",
    "Burmese": "ဒါက။|ဟုတ်",
    "Amharic": "ይህ ነው።| አዎ",
}


@pytest.mark.parametrize("language", SENTENCES)
def test_sentences_end_at_the_marks_of_their_script(language: str) -> None:
    marked = SENTENCES[language].split("|")
    between = "\n" if language == "Thai" else ""
    found = list(sentences(between.join(marked)))
    assert [text for text, _ in found] == [text.strip() for text in marked]
    assert all(ended for _, ended in found[:-1]) == (language != "Thai")


def test_lines_are_paragraphs_unless_they_were_broken_because_they_were_full() -> None:
    full = "This line of an old plain text was broken because it was full of"
    assert list(sentences(f"A title\n{full}\nwords. Then more.\n\n{full}")) == [
        ("A title", False),
        (f"{full} words.", True),
        ("Then more.", True),
        (full, False),
    ]
    wide = "この行は長いので次の行に続きます、この行は長いので次の"
    assert list(sentences(f"{wide}\n行に続きます。")) == [(f"{wide}行に続きます。", True)]
    korean = "이 줄은 길어서 다음 줄로 이어지고 그다음 줄에서 문장이 끝나는"
    assert list(sentences(f"{korean}\n글이다.")) == [(f"{korean} 글이다.", True)]


@pytest.mark.parametrize("words", ["แมวนอนอยู่บนเสื่อ", "ແມວນອນຢູ່ເທິງເສື່ອ"])
def test_lines_of_scripts_without_marks_at_their_ends_are_sentences(words: str) -> None:
    lines = [words * 4, f"{words * 4} (1)", words]
    assert all(50 <= columns(line) <= 100 for line in lines[:2])
    assert list(sentences("\n".join(lines))) == [(line, False) for line in lines]


def test_words_end_where_letters_do_or_anywhere_in_scripts_without_spaces() -> None:
    def borders(text: str) -> str:
        return "".join("|" * at_border(text, at) + text[at] for at in range(len(text)))

    assert borders("don't stop") == "|don|'|t| |stop"
    assert borders("東京のLinux") == "|東|京|の|Linux"
    assert borders("カタカナを") == "|カタカナ|を"
    assert borders("ที่นี่") == "|ที่|นี่"
    assert borders("है और") == "|है| |और"
    assert [is_word(each) for each in ("है", "ที่", "naïve", "a1", "", "\u0301a")] == [
        *[True] * 3,
        *[False] * 3,
    ]
    assert [columns(each) for each in ("है", "東京", "한글", "ab")] == [1, 4, 4, 2]
