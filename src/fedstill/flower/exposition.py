"""Numbers in Prometheus' text format."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Family:
    """Numbers of one name: what they count, and each with its labels."""

    name: str
    help: str
    type: Literal["gauge", "counter"]
    samples: list[tuple[Mapping[str, str], float]] = field(default_factory=list)

    def text(self) -> str:
        """The family's lines.

        >>> print(Family("up", "Is it up?", "gauge", [({"site": 'a"b'}, 1)]).text(), end="")
        # HELP up Is it up?
        # TYPE up gauge
        up{site="a\\"b"} 1
        """
        lines = [f"# HELP {self.name} {self.help}", f"# TYPE {self.name} {self.type}"]
        for labels, value in self.samples:
            inside = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
            lines.append(f"{self.name}{'{' + inside + '}' if inside else ''} {value:g}")
        return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
