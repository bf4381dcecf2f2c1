"""Settings as the text of a TOML file, which the standard library reads but does not write."""

import json
import re
from collections.abc import Mapping
from typing import Any


def toml(settings: Mapping[str, Any], docs: Mapping[str, str] | None = None) -> str:
    """Settings as a TOML text, values first, tables last, with a comment where `docs` has one."""
    lines, tables = [], []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            tables.append(f"\n[{name}]\n" + "".join(f"{key} = {literal(inner)}\n" for key, inner in value.items()))
        else:
            note = f"  # {docs[name]}" if docs and docs.get(name) else ""
            lines.append(f"{name} = {literal(value)}{note}\n")
    return "".join(lines + tables)


def key(name: str) -> str:
    """A key as TOML writes it: in quotes where it has more than letters, digits, - and _.

    >>> key("lg-fedavg"), key("FedAvg (OCA)")
    ('lg-fedavg', '"FedAvg (OCA)"')
    """
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else literal(name)


def literal(value: Any) -> str:
    """A value as TOML writes it on one line."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{k} = {literal(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(literal, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
