"""A site answers each round once: again only to the same download, and then with the same bits.

A hub that went back to an earlier round would otherwise get a second answer with noise of its own, which no budget
knows of: what a client keeps of its budget goes back with its state.
"""

import hashlib
import json
from pathlib import Path

from fedstill.core import record
from fedstill.core.errors import FedstillError


def only_once(folder: Path, round: int, body: bytes | None) -> None:
    """Remember which download a round of this run came with; a second one for the same round is refused.

    Args:
        folder: the run's folder at this site.
        round: the round that is asked for.
        body: the bytes of its download.
    """
    file = folder / "answered.json"
    known: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    digest = hashlib.sha256(body or b"").hexdigest()
    if known.get(str(round), digest) != digest:
        raise FedstillError(
            f"round {round + 1} was answered to another download; a second answer would spend privacy twice"
        )
    record.write(file, json.dumps({**known, str(round): digest}).encode())
