"""The words that tell classes of texts apart."""

import math
from collections import Counter
from collections.abc import Sequence

from fedstill.data.tokenize import words

MOST_TEXTS = 20_000
LEAST = 3
"""A word must stand in so many texts to tell anything."""


def telling(texts: Sequence[str], labels: Sequence[int], classes: int, top: int = 5) -> list[list[str]]:
    """For each class the words whose texts are of it far more often than chance: by log-odds, one added to each count.

    >>> telling(["free cash", "free car", "free cash", "hello you", "hello me", "hello cash"], [1, 1, 1, 0, 0, 0], 2, 1)
    [['hello'], ['free']]
    """
    inside = [Counter[str]() for _ in range(classes)]
    sizes = [0] * classes
    for text, label in zip(texts[:MOST_TEXTS], labels, strict=False):
        inside[label].update(set(words(text)))
        sizes[label] += 1
    every = sum(inside, Counter[str]())

    def odds(word: str, label: int) -> float:
        here, there = inside[label][word], every[word] - inside[label][word]
        rest = sum(sizes) - sizes[label]
        return math.log((here + 1) / (sizes[label] + 2)) - math.log((there + 1) / (rest + 2))

    known = [word for word, count in every.items() if count >= LEAST and word[0].isalnum()]
    return [sorted(known, key=lambda word: (-odds(word, c), word))[:top] for c in range(classes)]
