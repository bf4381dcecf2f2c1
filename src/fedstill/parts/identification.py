"""How well malicious clients were told apart, for every gather whose facts say who answered and whom it trusted."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedstill.core.facts import Truth, derives


def identification(trusted: Sequence[int], answered: Sequence[int], malicious: Sequence[int]) -> Mapping[str, float]:
    """Precision and recall of shutting out malicious clients, among those that answered.

    >>> identification(trusted=[1, 3], answered=[0, 1, 2, 3], malicious=[0])
    {'precision': 0.5, 'recall': 1.0}
    """
    shut = set(answered) - set(trusted)
    bad = set(malicious) & set(answered)
    hit = len(shut & bad)
    return {"precision": hit / len(shut) if shut else 1.0, "recall": hit / len(bad) if bad else 1.0}


@derives("trusted", "answered", place="row")
def identified(facts: Mapping[str, Any], truth: Truth) -> Mapping[str, Any]:
    """The round's `identification`: whom the gather trusted, precision and recall; nothing where all are honest."""
    if not truth.malicious:
        return {}
    found = identification(facts["trusted"], facts["answered"], truth.malicious)
    return {"identification": {"trusted": facts["trusted"], **found}}
