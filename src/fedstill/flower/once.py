"""A site answers each round once: again only to the same download, and then with the same bits.

A hub that went back to an earlier round would otherwise get a second answer with noise of its own, which no budget
knows of: what a client keeps of its budget goes back with its state. Nor are two sums of the same round unmasked over
different sites: their difference would be one site's upload.
"""

import hashlib
import json
from pathlib import Path

from fedstill.core import record
from fedstill.core.errors import FedstillError


def only_once(folder: Path, round: int, body: bytes | None, what: str = "answered") -> None:
    """Remember what a round of this run was answered to; another question of the same round is refused.

    Args:
        folder: the run's folder at this site.
        round: the round that is asked for.
        body: what is asked: the bytes of its download, or whose vectors are to be unmasked.
        what: what the site does, and the name of the file that remembers it.
    """
    file = folder / f"{what}.json"
    known: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    digest = hashlib.sha256(body or b"").hexdigest()
    if known.get(str(round), digest) != digest:
        raise FedstillError(
            f"round {round + 1} was {what} once, to another question; a second time would tell more than was promised"
        )
    record.write(file, json.dumps({**known, str(round): digest}).encode())
