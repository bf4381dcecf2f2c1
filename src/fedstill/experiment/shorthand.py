"""Short words for what is wrapped around every client's turn: `--private`, `--secure-sums`, `--compress`."""

from collections.abc import Sequence
from typing import Any

from fedstill.core.errors import UsageError


def wrapped(
    private: str | Sequence[str] | None = None, secure_sums: bool = False, compress: str | None = None
) -> list[dict[str, Any]]:
    """The wrappers that these words ask for, innermost first.

    Args:
        private: `epsilon=8,delta=1e-5` for each sample of a client; `clients,epsilon=4,clip=1` for each client; both
            in a list.
        secure_sums: whether the server is to see sums only.
        compress: a compression and its settings: `quantise,width=8` or `top-k,share=0.1`.

    Returns:
        Plain settings of wrappers, as an experiment's file has them.

        >>> wrapped("epsilon=8"), wrapped("clients,epsilon=4,clip=2")
        ([{'name': 'private-samples', 'epsilon': '8'}], [{'name': 'private-clients', 'epsilon': '4', 'clip': '2'}])
    """
    wrappers = _private([private] if isinstance(private, str) else private or ())
    if compress is not None:
        name, settings = _words("--compress", compress, None)
        wrappers.append({"name": name, **settings})
    if secure_sums:
        sums: dict[str, Any] = {"name": "secure-sums"}
        for noisy in wrappers:
            if noisy["name"] == "private-clients":  # nobody sees the sum without noise; all clients count alike
                noisy.setdefault("shared", 2 / 3)
                sums["by_samples"] = False
        wrappers.append(sums)
    return wrappers


def _private(asked: Sequence[str]) -> list[dict[str, Any]]:
    """The wrappers for privacy, that of samples innermost; one of a kind."""
    found: dict[str, dict[str, Any]] = {}
    for text in asked:
        kind, settings = _words("--private", text, "samples")
        if kind not in ("samples", "clients"):
            raise UsageError(f"--private {text!r}: must begin with samples, clients or a setting such as epsilon=8")
        if kind in found:
            raise UsageError(f"--private {text!r}: {kind} were asked for before; give all settings in one --private")
        found[kind] = {"name": f"private-{kind}", **settings}
    return [found[kind] for kind in ("samples", "clients") if kind in found]


def _words(option: str, text: str, kind: str | None) -> tuple[str, dict[str, str]]:
    """The first word without `=`, or `kind`; and the settings."""
    settings: dict[str, str] = {}
    for place, word in enumerate(text.split(",")):
        name, equals, value = word.strip().partition("=")
        if equals and name and value:
            settings[name] = value
        elif place == 0 and name and not equals:
            kind = name
        else:
            raise UsageError(f"{option} {text!r}: must be a list of name=value")
    if kind is None:
        raise UsageError(f"{option} {text!r}: must begin with a name, such as quantise or top-k")
    return kind, settings
