"""Which node is which site, and whether it is still the site that enrolled."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from fedstill.core.errors import FedstillError
from fedstill.flower.allowance import ENROLMENT
from fedstill.flower.enrolment import introduced
from fedstill.flower.messages import FORMAT, Enrol, Enrolled, Refusal, answer, readable
from fedstill.flower.post import INTRODUCTION, Collected, Post

POLL = 0.2
ANSWERED = 600.0
"""Seconds that an introduction is waited for: a site may be in the middle of a turn."""


@dataclass
class Remembered:
    """What the hub knows of a site from earlier in the run: its data's checksum, and its last turn's round."""

    data: str
    turns: int = 0


class Roster:
    """Asks nodes who they are. A site's name is the one its key was registered under, else what it says."""

    def __init__(self, post: Post, run: str, run_id: str, experiment: str, signature: str = "") -> None:
        self.post = post
        self.run = run
        self.run_id = run_id
        enrol = Enrol(run=run, run_id=run_id, format=FORMAT, experiment=experiment, signature=signature)
        self.question = enrol.dumps()
        self.enrolled: dict[str, Enrolled] = {}
        self.sites: dict[str, int] = {}
        self.refused: dict[str, str] = {}
        self.remembered: dict[str, Remembered] = {}
        self.since: dict[int, str] = {}
        self.asked: dict[int, str] = {}
        """By node, since when it was there when it was last asked who it is."""
        self.answered: dict[int, str] = {}
        self.online: dict[int, tuple[str, str]] = {}

    def node(self, site: str) -> int | None:
        """The node of a site that is there, and has not left since it introduced itself."""
        node = self.sites.get(site)
        if node is None or node not in self.online or self.answered.get(node) != self.online[node][1]:
            return None
        return node

    def here(self) -> list[str]:
        """The enrolled sites that are there, by name."""
        return sorted(site for site in self.enrolled if self.node(site) is not None)

    def refuse(self, site: str, why: str) -> None:
        """Leave a site out, and remember why."""
        self.post.audit.refusal(run=self.run, site=site, why=readable(why))
        self.refused[site] = f"does not take part: {why}"
        self.enrolled.pop(site, None)
        self.sites.pop(site, None)

    def remember(self, site: str, turns: int) -> None:
        """Note that a site has taken its turn in the round before `turns`."""
        if site in self.remembered:
            self.remembered[site].turns = max(turns, self.remembered[site].turns)

    def call(self, wanted: Iterable[str] = (), seconds: float = 5.0) -> None:
        """See who is there; ask nodes that are new who they are, and wait for that while sites wanted are missing."""
        self.online = self.post.nodes()
        self.since = {node: since for node, (_, since) in self.online.items()}
        waiting = {node for node, since in self.since.items() if self.answered.get(node) != since}
        wanted = list(wanted)
        if not waiting or (wanted and all(self.node(site) is not None for site in wanted)):
            return
        self._ask(sorted(waiting))
        until = time.monotonic() + seconds
        while waiting and time.monotonic() < until:
            for node, collected in self.post.collect(ENROLMENT):
                waiting.discard(node)
                self.hear(node, collected)
            time.sleep(POLL if waiting else 0)

    def ask_again(self, node: int, online: dict[int, tuple[str, str]]) -> None:
        """Ask a node that left and came back who it is now; its answer is to be given to `hear`."""
        self.online = online
        self._ask([node])

    def _ask(self, nodes: list[int]) -> None:
        """Ask nodes who they are, unless they have that question already: one that left since has forgotten it."""
        have = {message.node for message in self.post.under_way.values()}
        new = [node for node in nodes if node not in have or self.asked.get(node) != self.online[node][1]]
        for node in new:
            self.post.drop(node)
            self.asked[node] = self.online[node][1]
        if new:
            self.post.send(dict.fromkeys(new, self.question), None, INTRODUCTION, ANSWERED)

    def hear(self, node: int, collected: Collected) -> None:
        """A node's introduction: it is enrolled, or refused."""
        registered, since = self.online.get(node, ("", ""))
        self.answered[node] = since
        site = registered or f"node {node}"
        try:
            enrolled = self._introduced(registered, collected)
            if not registered:
                other = self.sites.get(enrolled.site)
                if other not in (None, node) and other in self.online:
                    raise FedstillError(f"node {node} calls itself {enrolled.site}, as node {other} does already")
                site = enrolled.site
            self._recognised(enrolled)
        except FedstillError as error:
            self.refuse(site, str(error))
            return
        self.refused.pop(site, None)
        self.post.audit.write("enrolled", run=self.run, site=site, samples=enrolled.samples, turns=enrolled.turns)
        self.enrolled[site] = enrolled
        self.sites[site] = node

    def _introduced(self, registered: str, collected: Collected) -> Enrolled:
        """A node's introduction to this very run, under the name its key was registered with."""
        if isinstance(collected, FedstillError):
            raise collected
        given = answer(collected[0])
        if isinstance(given, Refusal):
            raise FedstillError(given.why)
        if not isinstance(given, Enrolled):
            raise FedstillError(f"a message of kind {given.kind!r} where it should have introduced itself")
        if registered and given.site != registered:
            raise FedstillError(f"its key is registered as {registered!r}, it calls itself {given.site!r}")
        if (given.run, given.run_id) != (self.run, self.run_id):
            raise FedstillError(f"an answer to another run ({given.run})")
        introduced(given)
        return given

    def _recognised(self, enrolled: Enrolled) -> None:
        """Refuse a site that is no longer the one the run began with."""
        known = self.remembered.get(enrolled.site)
        if known is None:
            return
        if enrolled.data != known.data:
            raise FedstillError(
                "its data, or its state folder, are not those it enrolled with; bring them back, or start a new run"
            )
        if enrolled.turns < known.turns:
            raise FedstillError(
                f"its state is older than the run: it remembers {enrolled.turns} rounds, the hub {known.turns}; "
                "was it restored from a copy, or is another site running with its key?"
            )
