"""The Flower apps: what a hub's run starts, and what a stock SuperNode or Flower's simulation runs.

`fedstill site` answers questions itself and stays warm; `client` serves those who run `flower-supernode` instead, with
`--node-config 'data="…" model="…" state="…" name="…" policy="…"'`.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedstill.flower.content import packed, unpacked
from fedstill.flower.follow import tell

client = ClientApp()
server = ServerApp()


def train(grid: Grid, context: Context) -> None:
    """Drive a run; its folder is under the hub's FEDSTILL_RUNS."""
    from fedstill.core.errors import FedstillError
    from fedstill.core.registry import importing_only
    from fedstill.flower.audit import AuditLog
    from fedstill.flower.post import Post
    from fedstill.flower.serve import serve

    order = context.run_config
    runs = Path(os.environ.get("FEDSTILL_RUNS", "runs")).resolve()
    public = os.environ.get("FEDSTILL_PUBLIC") or None
    audit = AuditLog(Path(os.environ.get("FEDSTILL_AUDIT", runs / "audit.jsonl")))
    code = frozenset(json.loads(os.environ.get("FEDSTILL_CODE", "[]")))
    try:
        with importing_only(code):  # whoever may start a run may not run code of their own here
            run = str(order["run"])
            result = serve(
                Post(grid, runs, audit, run), run, json.loads(str(order["experiment"])), runs, public,
                float(order["wait"]), tell, str(order["signature"]),
            )  # fmt: skip
    except FedstillError as error:
        tell({"failed": str(error)})
        raise
    tell({"finished": {"rounds": len(result.rows)}})


_sites: dict[str, Any] = {}


def _answer(message: Message, context: Context) -> Message:
    """A site's answer to a message of any kind."""
    here = {key: str(value) for key, value in context.node_config.items()}
    head, body = _site(here, context.node_id).answer(*unpacked(message.content))
    return Message(packed(head, body), reply_to=message)


def _site(here: Mapping[str, str], node: int) -> Any:
    """The site that a node's configuration describes, made once."""
    from fedstill.flower.policy import read_policy
    from fedstill.flower.site import Site

    key = json.dumps(here, sort_keys=True)
    if key not in _sites:
        name = here.get("name", f"node-{node}")
        state = Path(here.get("state", f"fedstill-state/{name}"))
        policy = read_policy(Path(here["policy"]) if "policy" in here else None)
        _sites[key] = Site(
            name, here["data"], state, here.get("model", "auto"), here.get("public") or None, policy=policy
        )
    return _sites[key]


server.main()(train)
for kind in (client.query, client.train, client.evaluate):  # enrolment, a turn, an exam
    kind()(_answer)
