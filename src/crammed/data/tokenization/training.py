"""Trains a tokenizer on the corpus: the same text, in any order, gives the same bytes.

Of text with millions of different chunks the rarest are not counted, and which these are depends on
the order of the shards.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from crammed.config import TokenizerConfig
from crammed.data.tokenization.tokenizer import (
    CLS,
    MASK,
    NOT_ASCII,
    PAD,
    SEP,
    SPECIALS,
    UNK,
    finish,
)
from crammed.errors import InputError
from crammed.extras import import_extra
from crammed.files.scratch import scratch_folder
from crammed.keys import uniform

_ALPHABET_SHARE = 0.5
"""Largest share of the vocabulary that single characters may take."""
_FEW = 0.01
"""Share of the vocabulary that Chinese characters in other text may take twice, as in English that
quotes some names, so that its vocabularies stay what they were."""
_ALPHABET_COVERAGE = 0.99998
"""Share of the text that the characters of a WordPiece vocabulary cover."""
_CHARACTERS_A_WORD = 6
"""Including the space after it; a rough measure that also suits scripts without spaces."""
_COVERAGE = 0.9999
"""Share of the text that the characters of a Unigram vocabulary cover; others become [UNK]."""
_WORDS_A_TEXT = 2000
"""The library takes 256 texts at a time, and about 60 bytes for each word."""
_HASH_BYTES = 6
_MUCH = 0.01
"""Share of the text from which long words are cut, so that other vocabularies stay the same."""
_LONGEST_WORD = 1000
"""WordPiece turns words of more than 100 characters into [UNK], so they teach it nothing, and the
time to train on a word grows with the square of its length."""
_MOST_BYTES = 4192  # of a word: SentencePiece leaves out longer ones
_BPE_WORDS = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}\p{M}\x{200C}\x{200D}]+| ?\p{N}+"
    r"| ?[^\s\p{L}\p{M}\p{N}\x{200C}\x{200D}]+|\s+(?!\S)|\s+"
)
"""The words of GPT-2, except that letters keep their marks, such as the vowel signs of Hindi and
Thai, and the joiners of Persian."""
_SPACE = "\u2581"  # as SentencePiece writes a space
_PIECE = 10_000
"""Characters in a piece of text that is sampled or left out as a whole."""
_PIECE_OF_WORD = 1000  # characters; longer words are cut into such pieces


def train_from_words(counts: Iterable[tuple[str, int]], config: TokenizerConfig) -> Tokenizer:
    """Train a tokenizer on words in BERT's form: WordPiece, or one that knows whole words alone.

    Args:
        counts: each chunk from `chunks.cut_into_chunks` and how often it occurs, in any order.

    Raises:
        InputError: the text has no characters that the tokenizer keeps.
    """
    words = _words_of(counts, config)
    if config.kind == "wordlevel":
        tokenizer = Tokenizer(_most_frequent_words(words, config))
    else:
        tokenizer = Tokenizer(_word_pieces(words, config))
        tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.normalizer = _bert_normalizer(config)
    tokenizer.pre_tokenizer = _CUT
    return finish(tokenizer)


def _most_frequent_words(words: Mapping[str, int], config: TokenizerConfig) -> Any:
    """A model whose vocabulary is the words that occur most often, and at least twice."""
    ranked = sorted((word for word in words if words[word] > 1), key=lambda each: -words[each])
    if not ranked:
        raise InputError("no word occurs twice: add text, or set tokenizer.kind=wordpiece")
    vocabulary = [*SPECIALS, *ranked][: config.vocab_size]
    numbers = {word: number for number, word in enumerate(vocabulary)}
    return models.WordLevel(numbers, unk_token=SPECIALS[UNK])


def _word_pieces(words: Mapping[str, int], config: TokenizerConfig) -> Any:
    """A WordPiece model (Schuster and Nakajima 2012).

    The library's trainer numbers continuing characters in the order of a hash map, so no two
    trainings agree. Here the characters are counted first, and every ``##c`` is passed to the
    trainer as if it were special, which fixes all ids. The vocabulary then goes into a new model.
    """
    alphabet, continuing = _alphabet(words, config)
    specials = [*SPECIALS, *(f"##{c}" for c in continuing)]
    trainer = trainers.WordPieceTrainer(**_settings(config, alphabet, specials))
    draft = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    draft.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(" ")
    words = {word: count for word, count in words.items() if len(word) <= _LONGEST_WORD}
    words = _thinned(words, config.train_words)
    draft.train_from_iterator(_repeated(words), trainer)
    return models.WordPiece(vocab=draft.get_vocab(with_added_tokens=True), unk_token="[UNK]")


def _settings(
    config: TokenizerConfig, alphabet: list[str], specials: Sequence[str] = SPECIALS
) -> dict[str, Any]:
    """Arguments of the library's WordPiece and BPE trainers."""
    return {
        "vocab_size": config.vocab_size,
        "min_frequency": 2,
        "special_tokens": list(specials),
        "initial_alphabet": alphabet,
        "limit_alphabet": len(alphabet),
        "show_progress": False,
    }


def _bert_normalizer(config: TokenizerConfig) -> Any:
    bert = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=True,
        strip_accents=config.strip_accents,
        lowercase=config.lowercase,
    )
    return normalizers.Sequence([bert, _ASCII_ONLY]) if config.ascii_only else bert


_ASCII_ONLY = normalizers.Replace(Regex(NOT_ASCII), "")
_CHINESE_APART = normalizers.BertNormalizer(strip_accents=False, lowercase=False)
_CUT = pre_tokenizers.BertPreTokenizer()


def _words_of(counts: Iterable[tuple[str, int]], config: TokenizerConfig) -> dict[str, int]:
    """Words, sorted, and how often each occurs once the chunks are normalised.

    Chunks go through the normaliser many at a time, joined by "|", which is always a chunk of its
    own and which nothing else normalises to.
    """
    normalizer = _bert_normalizer(config)
    words: Counter[str] = Counter()
    items = iter(counts)
    while batch := list(islice(items, 1000)):
        chunks = [chunk if chunk != "|" else "" for chunk, _ in batch]
        words["|"] += sum(count for chunk, count in batch if chunk == "|")
        text = normalizer.normalize_str("|".join(chunks))
        for part, (_, count) in zip(text.split("|"), batch, strict=True):
            word = part.strip()
            if word.isalnum():  # nothing to cut at, as in almost every word
                words[word] += count
            else:
                for word, _ in _CUT.pre_tokenize_str(part):
                    words[word] += count
    return {word: words[word] for word in sorted(words) if words[word]}


def _alphabet(words: Mapping[str, int], config: TokenizerConfig) -> tuple[list[str], list[str]]:
    """The characters that make up nearly all of the text, and those of them that continue words.

    Each takes two entries of the vocabulary, or one if it always stands alone, so the rarest become
    [UNK]: thousands may occur only a few times, in foreign names.
    """
    ranked = _frequent(words, _ALPHABET_COVERAGE)
    alone = {character for character in ranked if _stands_alone(character)}
    if len(alone) <= _FEW * config.vocab_size:
        alone = set()
    alphabet = _fitting(ranked, lambda character: 2 - (character in alone), config)
    return alphabet, [character for character in alphabet if character not in alone]


def _frequent(words: Mapping[str, int], share: float) -> list[str]:
    """The most frequent characters, by frequency, until they cover a share of the text."""
    totals: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            totals[character] += count
    ranked = sorted(totals, key=lambda character: (-totals[character], character))
    covered = list(accumulate(totals[character] for character in ranked))
    return ranked[: bisect_left(covered, share * totals.total()) + 1]


def _fitting(
    ranked: Sequence[str], entries: Callable[[str], int], config: TokenizerConfig
) -> list[str]:
    """The first of these characters that fit into the vocabulary's share for them, sorted.

    Each takes so many `entries` of the vocabulary.
    """
    room = int(_ALPHABET_SHARE * (config.vocab_size - len(SPECIALS)))
    ranked = ranked[: bisect_right(list(accumulate(map(entries, ranked))), room)]
    if not ranked:
        raise InputError("the corpus holds no characters that the tokenizer keeps")
    return sorted(ranked)


def _stands_alone(character: str) -> bool:
    """Whether a letter is always cut off from its neighbours, as Chinese characters are.

    Punctuation is, too, but its few entries stay, so that vocabularies stay what they were.
    """
    if not character.isalpha():
        return False
    text = _CHINESE_APART.normalize_str(f"x{character}x")
    return _CUT.pre_tokenize_str(text)[0][0] == "x"


def _thinned(words: Mapping[str, int], most: int) -> dict[str, int]:
    """Scale counts to `most` occurrences in all; a hash of each word decides how its count rounds.

    This samples the corpus regardless of the order of words and the number of workers.
    """
    share = most / max(1, sum(words.values()))
    if share >= 1.0:
        return dict(words)
    thinned = {}
    for word, count in words.items():
        whole, part = divmod(count * share, 1.0)
        scaled = int(whole) + (uniform(word, _HASH_BYTES) < part)
        if scaled > 1:  # single occurrences teach nothing and take half the memory
            thinned[word] = scaled
    return thinned


def _repeated(words: Mapping[str, int]) -> Iterator[str]:
    """Each word as often as it occurs: the library's trainers take text, not counts."""
    text: list[str] = []
    characters = 0
    for word, count in words.items():
        for start in range(0, count, _WORDS_A_TEXT):
            text.append(f"{word} " * min(_WORDS_A_TEXT, count - start))
            characters += len(text[-1])
            if characters > _WORDS_A_TEXT * _CHARACTERS_A_WORD:
                yield "".join(text)
                text, characters = [], 0
    yield "".join(text)


def train_from_texts(texts: Iterable[str], characters: int, config: TokenizerConfig) -> Tokenizer:
    """Train a byte-level BPE (GPT-2, ModernBERT), SentencePiece's BPE or Unigram (Kudo 2018).

    Args:
        characters: of all texts; from their number follows the share of them to train on.

    Raises:
        InputError: there is no text, the vocabulary is too small for its characters, or an extra
            is missing.
    """
    train = {
        "bpe": _train_bpe,
        "sentencepiece-bpe": _train_sentencepiece_bpe,
        "unigram": _train_unigram,
    }
    share = config.train_words * _CHARACTERS_A_WORD / max(1, characters)
    trained = train[config.kind](_thinned_texts(texts, share), config)
    return finish(trained, spaces=True)


def _thinned_texts(texts: Iterable[str], share: float) -> Iterator[str]:
    """Pieces that make up about a share of the texts, chosen by a hash of each piece."""
    for text in texts:
        for start in range(0, len(text), _PIECE):
            piece = text[start : start + _PIECE]
            if share >= 1.0 or uniform(piece, _HASH_BYTES) < share:
                yield piece


def _letters(config: TokenizerConfig, form: str) -> list[Any]:
    """Normalisers for normal form `form` ("C" or "KC") and the settings in `config`."""
    composed = getattr(normalizers, f"NF{form}")()
    decomposed = getattr(normalizers, f"NF{form[:-1]}D")()
    steps = [decomposed, normalizers.StripAccents()] if config.strip_accents else []
    steps += [normalizers.Lowercase()] if config.lowercase else []
    return [*steps, composed, *([_ASCII_ONLY] if config.ascii_only else [])]


def _train_bpe(texts: Iterable[str], config: TokenizerConfig) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    smallest = len(SPECIALS) + len(alphabet)
    if config.vocab_size < smallest:
        raise InputError(f"a bpe tokenizer needs tokenizer.vocab_size={smallest} or more")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence(_letters(config, "C"))
    cut = pre_tokenizers.Split(Regex(_BPE_WORDS), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(**_settings(config, alphabet)))
    return tokenizer


def _spaced(config: TokenizerConfig) -> Any:
    """SentencePiece's normaliser: form KC, the settings in `config`, and single spaces."""
    spaces = normalizers.Replace(Regex(r"\s+"), " ")
    return normalizers.Sequence([*_letters(config, "KC"), spaces])


def _words_between_spaces(
    texts: Iterable[str], normalizer: Any, is_too_long: Callable[[str], bool]
) -> Counter[str]:
    """How often each word occurs; words too long for a trainer are cut if they are much of it.

    Such words are DNA, for example, and paragraphs without any space.
    """
    counts = Counter[str]()
    for text in texts:
        counts.update(normalizer.normalize_str(text).split())
    long = [word for word in counts if is_too_long(word)]
    held = sum(len(word) * counts[word] for word in long)
    if held >= _MUCH * sum(len(word) * count for word, count in counts.items()):
        for word in long:
            count = counts.pop(word)
            for start in range(0, len(word), _PIECE_OF_WORD):
                counts[word[start : start + _PIECE_OF_WORD]] += count
    return counts


def _train_sentencepiece_bpe(texts: Iterable[str], config: TokenizerConfig) -> Tokenizer:
    """BPE on characters, with a sign for each space, as SentencePiece has it.

    It is trained on sorted words, with a given alphabet, because the library breaks ties between
    characters in the order of a hash map. Characters outside of it become [UNK].
    """
    normalizer = _spaced(config)
    counts = _words_between_spaces(texts, normalizer, lambda word: len(word) > _LONGEST_WORD)
    words = {word: counts[word] for word in sorted(counts) if len(word) <= _LONGEST_WORD}
    alphabet = [_SPACE, *_fitting(_frequent(words, _COVERAGE), lambda _: 1, config)]
    tokenizer = Tokenizer(models.BPE(unk_token=SPECIALS[UNK], fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(**_settings(config, alphabet))
    tokenizer.train_from_iterator(_repeated(words), trainer)
    tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def unigram_library() -> Any:
    """The library that trains; if it is missing, an `InputError` names the extra."""
    return import_extra("sentencepiece", "unigram", "tokenizer.kind=unigram")


def _train_unigram(texts: Iterable[str], config: TokenizerConfig) -> Tokenizer:
    """Train with SentencePiece, in one thread, on sorted words.

    The trainer of `tokenizers` adds up words in the order of a hash map, so no two trainings give
    the same scores.
    """
    library = unigram_library()
    normalizer = _spaced(config)
    words = _words_between_spaces(texts, normalizer, lambda word: len(word.encode()) > _MOST_BYTES)
    with scratch_folder() as folder:
        counts, model = folder / "counts.tsv", folder / "unigram.model"
        lines = (f"{word}\t{count}\n" for word, count in sorted(words.items()))
        counts.write_text("".join(lines), "utf-8")
        try:
            library.SentencePieceTrainer.train(
                input=str(counts),
                input_format="tsv",
                model_prefix=str(model.with_suffix("")),
                model_type="unigram",
                vocab_size=config.vocab_size,
                max_sentence_length=_MOST_BYTES,
                hard_vocab_limit=False,
                normalization_rule_name="identity",
                num_threads=1,
                minloglevel=2,
                character_coverage=_COVERAGE,
                pad_id=PAD,
                unk_id=UNK,
                bos_id=CLS,
                eos_id=SEP,
                pad_piece=SPECIALS[PAD],
                unk_piece=SPECIALS[UNK],
                bos_piece=SPECIALS[CLS],
                eos_piece=SPECIALS[SEP],
                control_symbols=[SPECIALS[MASK]],
            )
        except RuntimeError as error:
            raise InputError(
                "no unigram tokenizer from this text: it is empty, or tokenizer.vocab_size="
                f"{config.vocab_size} is too small for its characters"
            ) from error
        trained = library.SentencePieceProcessor(model_file=str(model))
    # Rounded to the precision of a float32, so that JSON gives the same numbers back.
    scores = [round(trained.get_score(n), 6) for n in range(len(trained))]
    pieces = [(trained.id_to_piece(n), score) for n, score in enumerate(scores)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=UNK))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer
