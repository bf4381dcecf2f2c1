"""The Flower apps: what `flwr run` starts on the hub, and what a stock SuperNode or Flower's simulation runs.

`fedstill site` answers letters itself and stays warm; `client` serves those who run `flower-supernode` instead, with
`--node-config 'data="…" model="…" state="…" name="…"'`.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

TELL = "@fedstill "
"""How lines for `fedstill deploy` begin in the run's log."""

client = ClientApp()
server = ServerApp()


def say(what: Mapping[str, Any]) -> None:
    """Tell whoever follows the run's log."""
    print(TELL + json.dumps(what), flush=True)


def train(grid: Grid, context: Context) -> None:
    """Drive a run; its folder is under the hub's FEDSTILL_RUNS."""
    from fedstill.core.errors import FedstillError
    from fedstill.flower.serve import serve
    from fedstill.flower.transport import Post

    order = context.run_config
    runs = Path(os.environ.get("FEDSTILL_RUNS", "runs")).resolve()
    public = os.environ.get("FEDSTILL_PUBLIC") or None
    try:
        result = serve(
            Post(grid), str(order["run"]), json.loads(str(order["experiment"])), runs, public, float(order["wait"]), say
        )
    except FedstillError as error:
        say({"failed": str(error)})
        raise
    say({"finished": {"rounds": len(result.rows)}})


_workers: dict[str, Any] = {}


def _answer(message: Message, context: Context) -> Message:
    """A site's answer to a letter of any kind."""
    from fedstill.flower.site import Site
    from fedstill.flower.transport import packed, unpacked

    here = {key: str(value) for key, value in context.node_config.items()}
    key = json.dumps(here, sort_keys=True)
    if key not in _workers:
        name = here.get("name", f"node-{context.node_id}")
        state = Path(here.get("state", f"fedstill-state/{name}"))
        _workers[key] = Site(name, here["data"], state, here.get("model", "auto"), here.get("public") or None)
    return Message(packed(_workers[key].answer(*unpacked(message.content))), reply_to=message)


server.main()(train)
for kind in (client.query, client.train, client.evaluate):  # enrolment, a turn, an exam
    kind()(_answer)
