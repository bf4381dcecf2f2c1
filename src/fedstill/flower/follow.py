"""The lines by which a run tells whoever follows its log how it goes: JSON after a mark."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

MARK = "@fedstill "


def tell(news: Mapping[str, Any]) -> None:
    """Print a line for those who follow the run's log."""
    print(MARK + json.dumps(news), flush=True)


def news_in(lines: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """What the run told, from the lines of its log; other lines are left out."""
    for line in lines:
        if line.startswith(MARK):
            try:
                yield json.loads(line.removeprefix(MARK))
            except ValueError:
                continue
