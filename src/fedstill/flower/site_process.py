"""`fedstill site`: one site, with its own data, its own model and its own disk."""

import fcntl
import signal
import sys
import time
from pathlib import Path
from typing import Any

from fedstill.core.errors import UsageError
from fedstill.core.method import methods
from fedstill.flower.flwr_env import prepare
from fedstill.flower.messages import checked_name


def site(
    hub: str,
    data: str,
    state: Path,
    key: Path | None = None,
    name: str | None = None,
    ca: Path | None = None,
    insecure: bool = False,
    model: str = "auto",
    public: str | None = None,
    device: str = "cpu",
    only: tuple[str, ...] = (),
) -> None:
    """Serve letters until told to stop (SIGINT, SIGTERM)."""
    if insecure == (key is not None):
        raise UsageError("a site needs --key (fedstill keys makes one), or --insecure where the hub takes any site")
    if insecure and ca is not None:
        raise UsageError("--ca and --insecure: choose one")
    title = checked_name("site", name or (key.stem if key else state.resolve().name))
    home = state.expanduser().resolve()
    home.mkdir(parents=True, exist_ok=True)
    prepare(home / "flwr")
    for method in only:
        methods[method]  # a misspelt name says which there are
    from fedstill.flower.node import Line, WarmNode
    from fedstill.flower.site import Site

    with (home / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"--state {state}: another site uses this folder") from None
        worker = Site(title, data, home, model, public, device, only, _say)
        _say(
            f"site {title}: {len(worker.own.train)} samples, classes {', '.join(worker.own.class_names)}, model {model}"
        )
        try:
            root = ca.read_bytes() if ca else None
        except OSError as error:
            raise UsageError(f"--ca {ca}: {error.strerror}") from None
        node = WarmNode(Line(hub, root, key, insecure), home, _say)
        for sign in (signal.SIGINT, signal.SIGTERM):
            signal.signal(sign, lambda *_: node.stop())
        node.serve(worker.answer)
        _say("left the hub")


def explain(only: tuple[str, ...] = ()) -> str:
    """What leaves a site, from the methods' own declarations."""
    import fedstill.methods  # noqa: F401 (registers them)

    names = only or tuple(methods)
    lines = [
        "What leaves this site:",
        "  when a run begins   its name, its model's name, how many samples it trains and tests on, the images' form,",
        "                      their mean and deviation per channel and lowest value, the names of its classes,",
        "                      and a checksum of the public set where the method needs one",
        "  after every turn    what the method uploads (below), and how many seconds the turn took",
        "  at every exam       how many of its test samples each model got right (per class if the experiment asks)",
        "Its samples, its state and models of its own stay here. A method uploads:",
    ]
    width = max(map(len, names))
    for name in names:
        fields = methods[name].leaves_client()
        lines.append(f"  {name:<{width}}  " + ", ".join(f"{field}: {what}" for field, what in fields.items()))
    if not only:
        lines.append("With --only METHOD (again for more) the site takes part in these methods alone.")
    return "\n".join(lines)


def _say(*words: Any) -> None:
    print(time.strftime("%H:%M:%S"), *words, file=sys.stderr, flush=True)
