"""Settings as the text of a TOML file, which the standard library reads but does not write."""

import json
from collections.abc import Mapping
from typing import Any


def toml(settings: Mapping[str, Any], docs: Mapping[str, str] | None = None) -> str:
    """Settings as a TOML text, values first, tables last, with a comment where `docs` has one."""
    lines, tables = [], []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            tables.append(f"\n[{name}]\n" + toml({k: _inline(v) for k, v in value.items()}))
        else:
            note = f"  # {docs[name]}" if docs and docs.get(name) else ""
            lines.append(f"{name} = {_literal(value)}{note}\n")
    return "".join(lines + tables)


class _Raw(str):
    pass


def _inline(value: Any) -> Any:
    return _Raw(_literal(value)) if isinstance(value, Mapping) else value


def _literal(value: Any) -> str:
    if isinstance(value, _Raw):
        return value
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{k} = {_literal(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
