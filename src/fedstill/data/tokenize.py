"""Texts to tokens: by a hash that needs no agreement between sites, or by a `tokenizers` file.

>>> rows = hashed(["To be, or not to be", "to be"], length=8, vocabulary=1000)
>>> rows[0][:2].tolist() == rows[1][:2].tolist()
True
"""

import re
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedstill.core.errors import DataError, extra
from fedstill.data.kinds import Tokens
from fedstill.data.reading import Reading

_WORD = re.compile(r"\w+|[^\w\s]")


def words(text: str) -> list[str]:
    """Lower-case words and single marks.

    >>> words("It's OK.")
    ['it', "'", 's', 'ok', '.']
    """
    return _WORD.findall(text.lower())


def number(word: str, vocabulary: int) -> int:
    """A word's token: from 1 to vocabulary − 1, the same on every machine (CRC-32)."""
    return 1 + zlib.crc32(word.encode()) % (vocabulary - 1)


def hashed(texts: Sequence[str], length: int, vocabulary: int) -> NDArray[np.int32]:
    """The first `length` tokens of every text, 0 behind short ones."""
    known: dict[str, int] = {}
    out = np.zeros((len(texts), length), np.int32)
    for row, text in enumerate(texts):
        for place, word in enumerate(words(text)[:length]):
            token = known.get(word)
            if token is None:
                token = known[word] = number(word, vocabulary)
            out[row, place] = token
    return out


def tokens(texts: Sequence[str], reading: Reading) -> tuple[NDArray[np.int32], Tokens]:
    """Texts as tokens, and their kind."""
    if reading.tokenizer == "hash":
        kind = Tokens(reading.length, reading.vocabulary, reading.embedding)
        return hashed(texts, reading.length, reading.vocabulary), kind
    return from_file(texts, reading)


def from_file(texts: Sequence[str], reading: Reading) -> tuple[NDArray[np.int32], Tokens]:
    """Texts as the tokens of a `tokenizers` file, each one higher: 0 is for empty places."""
    with extra("text", f"tokenizer = {reading.tokenizer!r}"):
        from tokenizers import Tokenizer
    if not Path(reading.tokenizer).is_file():
        raise DataError(f"tokenizer = {reading.tokenizer!r}: must be hash, or the path of a tokenizers file")
    try:
        tokenizer = Tokenizer.from_file(reading.tokenizer)
    except Exception as error:  # the library raises bare exceptions
        raise DataError(f"tokenizer = {reading.tokenizer!r}: cannot be read ({error})") from None
    out = np.zeros((len(texts), reading.length), np.int32)
    for row, found in enumerate(tokenizer.encode_batch(list(texts))):
        ids = found.ids[: reading.length]
        out[row, : len(ids)] = np.asarray(ids, np.int32) + 1
    size = tokenizer.get_vocab_size() + 1
    return out, Tokens(reading.length, size, reading.embedding, reading.tokenizer)
