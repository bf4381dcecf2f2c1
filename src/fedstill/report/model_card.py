"""The card that goes with a model: its data, how it serves every client, what left the clients, privacy spent.

It is Markdown with a head that the Hugging Face hub reads, made from the run's folder alone.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fedstill
from fedstill.core.kind import Kind
from fedstill.data.kinds import Image, Series, Table, Tokens
from fedstill.experiment.result import Result
from fedstill.experiment.signature import Signature
from fedstill.experiment.toml import toml
from fedstill.report.privacy import left_clients, spent
from fedstill.report.terminal import size


def card(
    result: Result, model: str, signature: Signature, title: str, license: str | None = None, address: str = "FOLDER"
) -> str:
    """The card of a run's model.

    Args:
        result: the run, read from its folder.
        model: which of its models: `overall`, `active`, … or a client's number.
        signature: what the model takes and gives.
        title: the heading.
        license: of the model, as its owner says.
        address: where it is pulled from.

    Returns:
        The card, as `README.md` has it.
    """
    parts = [
        _head(result, license),
        f"# {title}",
        _opening(result, model),
        _use(address, signature.brought),
        _data(result, signature),
        _scores(result, model),
        _left(result),
        _privacy(result),
        _again(result),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(result: Result, license: str | None) -> str:
    """What the hub reads: YAML, whose strings are JSON's."""
    tags = ["federated-learning", "knowledge-distillation", result.experiment["method"]["name"]]
    lines = ["library_name: fedstill", f"tags: {json.dumps([*tags, *result.experiment.get('tag', ())])}"]
    lines += [f"license: {json.dumps(license)}"] if license else []
    return "\n".join(["---", *lines, "---"])


def _opening(result: Result, model: str) -> str:
    plan = result.experiment
    note = f"\n\n{plan['note']}" if plan.get("note") else ""
    where = "at sites that kept their data" if plan.get("transport") == "flower" else "in a simulation on one machine"
    return (
        f"The model `{model}` that {plan['method']['name']} trained over {plan['clients']} clients in "
        f"{len(result.rows)} round{'s' * (len(result.rows) != 1)}, {where}, with fedstill {fedstill.__version__}.{note}"
    )


def _use(address: str, kind: Kind) -> str:
    return (
        "## Use\n\n```\n"
        f"fedstill pull {address} model{'' if address.startswith('hf://') else '    # FOLDER: the one of this file'}\n"
        f"fedstill predict model {_sample(kind)}\n"
        "fedstill export model model.onnx\n```"
    )


def _sample(kind: Kind) -> str:
    """The name of a file such as `predict` takes."""
    match kind:
        case Table():
            return "rows.csv"
        case Tokens():
            return "texts.csv"
        case Series(names=names) if names:
            return "rows.csv"
        case Image(shape=(1 | 3, _, _)):
            return "picture.png"
    return "sample.npy"


def _data(result: Result, signature: Signature) -> str:
    plan, kind, low, high = result.experiment, signature.brought, signature.low, signature.high
    units = "" if low is None or high is None else f" from {low:g} to {high:g}"
    rows = [
        ("data", f"{Path(str(plan['data'])).name}, fingerprint `{plan.get('fingerprint') or 'unknown'}`"),
        ("a sample", f"{kind.words()}, {signature.dtype}{units}"),
        ("classes", ", ".join(signature.class_names)),
        ("clients", f"{plan['clients']}, split by {plan['partition']['name']}"),
        ("training samples", f"{sum(signature.sizes):,}"),
    ]
    return "## Data\n\n" + _table(("", ""), rows)


def _scores(result: Result, model: str) -> str:
    """All metrics, and how every client is served: of a client's own model, how it serves everybody."""
    name = model if model in result.models else "personal" if "personal" in result.models else ""
    if not name:
        return "## How well it does\n\nThe run did not report this model's metrics."
    last = result.last(name)
    known = [(m.heading, m.text(last[m.key])) for m in result.metrics if last.get(m.key) is not None]
    each = result.per_client(name)
    names = result.client_names or tuple(str(k) for k in range(len(each)))
    shown = [(client, "no test" if v is None else f"{v:.4f}") for client, v in zip(names, each, strict=True)]
    measure = str(result.experiment.get("metric", "accuracy"))
    about = "" if name == model else " (of every client's own model)"
    parts = [f"## How well it does\n\nAfter round {len(result.rows)}{about}.", _table(("metric", "value"), known)]
    return "\n\n".join([*parts, _table(("client", f"{measure} on its own test"), shown)])


def _left(result: Result) -> str:
    bytes_up = result.bytes_by_field()["up"]
    rows = [
        (f"`{field}`", what, size(bytes_up.get(field, 0))) for field, what in left_clients(result.experiment).items()
    ]
    if not rows:
        rows = [(f"`{field}`", "not declared here", size(count)) for field, count in bytes_up.items()]
    head = ("field", "what it carries", "bytes, all clients and rounds")
    return "## What left the clients\n\n" + (_table(head, rows) if rows else "Nothing.")


def _privacy(result: Result) -> str:
    """ε at the end for whom it was promised, and what an audit found."""
    known = spent(result.rows)
    if known:
        names = dict(enumerate(result.client_names))
        rows = [
            ("all clients" if k == "all" else names.get(int(k), k), f"{epsilon:.4g}", f"{known[-1].delta[k]:g}")
            for k, epsilon in known[-1].epsilon.items()
        ]
        text = _table(("client", "ε spent", "δ"), rows)
    else:
        text = "No differential privacy was asked for: nothing bounds what the model or the messages tell of a sample."
    audit = result.file("audit.json")
    if audit is None:
        return f"## Privacy spent\n\n{text}"
    tried = [(row["target"], row["attack"], f"{row['auc']['value']:.3f}") for row in audit["membership"]]
    return f"## Privacy spent\n\n{text}\n\n" + _table(("attacked", "attack", "AUC (.5 is guessing)"), tried)


def _again(result: Result) -> str:
    plan = {**result.experiment}
    plan |= {key: nameless(plan[key]) for key in ("data", "public", "partition") if key in plan}
    plan |= {key: without_folder(plan[key]) for key in ("reading",) if plan.get(key)}
    return f"## How it was made\n\n```toml\n{toml(plan)}```"


def nameless(value: Any) -> Any:
    """The same settings with the last part of every path alone, whose folders are nobody else's business.

    >>> nameless(["/home/me/a.npz", "digits", 3])
    ['a.npz', 'digits', 3]
    """
    if isinstance(value, Mapping):
        return {key: nameless(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [nameless(inner) for inner in value]
    return Path(value).name if isinstance(value, str) else value


def without_folder(settings: Mapping[str, Any]) -> dict[str, Any]:
    """How data are read, without the folder of the tokenizer; names of columns and categories are no paths.

    >>> without_folder({"tokenizer": "/home/me/tokens.json", "label": "ER+/HER2+"})
    {'tokenizer': 'tokens.json', 'label': 'ER+/HER2+'}
    """
    return {key: Path(value).name if key == "tokenizer" else value for key, value in settings.items()}


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
