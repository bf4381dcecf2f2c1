"""The commands beyond one machine: hub, keys, site, deploy. Flower and torch are imported when one of them runs."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fedstill.cli_app import Json, app
from fedstill.cli_fields import given, of_reading, with_fields

STATE = Path("~/.fedstill/hub")
Ca = Annotated[Path | None, typer.Option(help="The certificate of the authority that signed the hub's.")]
KeepDays = Annotated[
    float | None, typer.Option(help="Delete runs in which nothing was written so long. [never]", min=0)
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Plain text and no keys: only for trying things out.")]


@app.command()
def hub(
    cert: Annotated[Path | None, typer.Option(help="The hub's certificate (PEM).")] = None,
    key: Annotated[Path | None, typer.Option(help="Its private key.")] = None,
    ca: Ca = None,
    allow: Annotated[list[Path] | None, typer.Option(help="A site's public key to let in, again for more.")] = None,
    insecure: Insecure = False,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(help="The one port for sites and for deploy.")] = 9080,
    state: Annotated[Path, typer.Option(help="The hub's folder: database, token, runs.")] = STATE,
    runs: Annotated[Path | None, typer.Option(help="Where run folders go. [STATE/runs]")] = None,
    public: Annotated[
        str | None, typer.Option(help="Where this machine has the public set, if not by the experiment's name.")
    ] = None,
    revoke: Annotated[list[str] | None, typer.Option(help="Shut this site out of the running hub, for good.")] = None,
    token_for: Annotated[str | None, typer.Option(help="Make a token for this person; see --role and --days.")] = None,
    role: Annotated[str, typer.Option(help="What it is good for: start, read, register or approve.")] = "read",
    days: Annotated[float, typer.Option(help="For how many days.")] = 90.0,
    withdraw: Annotated[str | None, typer.Option(help="Withdraw all tokens of this person.")] = None,
    approval: Annotated[
        bool, typer.Option("--approval", help="Start only what another person approved (deploy --approve).")
    ] = False,
    keep_days: KeepDays = None,
    code: Annotated[
        list[str] | None, typer.Option(help="Code outside fedstill that experiments may name (package.module:Name).")
    ] = None,
    backup: Annotated[
        Path | None, typer.Option(help="Copy the hub's folder into this tar file; start nothing.")
    ] = None,
) -> None:
    """Run the hub: sites connect to it, `fedstill deploy` starts runs on it."""
    from fedstill.flower import hub as hubs

    if backup is not None:
        from fedstill.flower.keeping import backup as copied

        print(f"{backup}: {copied(state.expanduser().resolve(), backup):,} bytes; it holds the hub's secrets")
        return
    if token_for or withdraw:
        _tokens(state, token_for, role, days, withdraw)
        return
    if (allow or revoke) and not (cert or key or insecure):
        _change_keys(state, allow or [], revoke or [])
        return
    hubs.hub(
        host, port, state, cert, key, ca, tuple(allow or ()), insecure, runs, public, approval, keep_days,
        tuple(code or ()),
    )  # fmt: skip


def _change_keys(state: Path, allow: list[Path], revoke: list[str]) -> None:
    """Let more sites into the hub that runs from this state folder, or shut some out."""
    from fedstill.core.errors import UsageError
    from fedstill.flower.flwr_env import prepare

    home = state.expanduser().resolve()
    if not (home / "hub.json").exists():
        wrong = f"--allow, --revoke: no hub was started from {home}"
        raise UsageError(f"{wrong}: name its --state, or start one with --cert, --key and --ca")
    prepare(home / "flwr")
    from fedstill.flower.control import HubClient
    from fedstill.flower.keys import read_public

    known = json.loads((home / "hub.json").read_text())
    with HubClient(
        known["address"], known["ca"] and Path(known["ca"]), known["ca"] is None, (home / "token").read_text()
    ) as there:
        for file in allow:
            print(there.register(file.stem, read_public(file)))
        for name in revoke:
            print(there.revoke(name))


def _tokens(state: Path, person: str | None, role: str, days: float, withdraw: str | None) -> None:
    """Make a token with a role and an end, or withdraw a person's tokens."""
    from fedstill.flower.audit import AuditLog
    from fedstill.flower.private import private_folder
    from fedstill.flower.tokens import Tokens

    home = private_folder(state)
    tokens = Tokens(home)
    audit = AuditLog(home / "audit.jsonl")
    if withdraw:
        count = tokens.withdraw(withdraw)
        audit.write("tokens withdrawn", person=withdraw, count=count)
        print(f"{withdraw}: {count} tokens withdrawn")
    if person:
        print(tokens.make(person, role, days))
        audit.write("token made", person=person, role=role, days=days)


@app.command()
def keys(
    name: Annotated[
        Path | None, typer.Argument(help="The site's name: makes NAME (private) and NAME.pub. `kit NAME`: a kit.")
    ] = None,
    kit: Annotated[Path | None, typer.Argument(help="After `kit`: the site that gets one file with all.")] = None,
    hub: Annotated[
        str | None,
        typer.Option(help="Host names and addresses, comma-separated: certificates for a hub. For a kit: host:port."),
    ] = None,
    person: Annotated[bool, typer.Option("--person", help="Make a person's key, to sign experiments with.")] = False,
    ca: Ca = None,
    out: Annotated[Path, typer.Option(help="Folder for the certificates.")] = Path("."),
) -> None:
    """Make a site's or a person's key pair, a site's kit, or certificates for a hub."""
    from fedstill.core.errors import UsageError, extra
    from fedstill.flower import keys as made

    with extra("flower", "keys"):
        import cryptography  # noqa: F401
    if kit is not None:
        if str(name) != "kit" or hub is None or ca is None:
            raise UsageError("keys: for a kit write `keys kit NAME --hub host:port --ca ca.crt`")
        packed, public = made.make_kit(kit, hub, ca)
        start = "sh start.sh DATA [--label outcome …]"
        print(f"{packed}: hand it to the site (tar -xf it there, then {start}); it holds the private key")
        print(f"{public}: goes to the hub (fedstill hub --allow {public})")
    elif (name is None) == (hub is None):
        raise UsageError("keys: give a site's name, or --hub with the hub's addresses")
    elif name is not None and person:
        private, public = made.make_person_key(name)
        print(f"{private}: stays with the person (fedstill deploy --sign {private})")
        print(f"{public}: goes to the sites (signers in their policy.toml)")
    elif name is not None:
        private, public = made.make_key(name)
        print(f"{private}: stays on the site (fedstill site --key {private})")
        print(f"{public}: goes to the hub (fedstill hub --allow {public})")
    else:
        for what, file in made.make_certificates(out, str(hub).split(",")).items():
            use = {
                "ca.crt": "give it to every site",
                "ca.key": "keep it off line",
                "server.key": "hub --key",
                "server.pem": "hub --cert",
            }
            print(f"{file}: {use[what]}")


READ = ("label", "time", "window", "step", "text", "ignore", "numeric", "categorical", "kind")
"""Settings of a reading that a site has for its own data."""


@app.command(cls=with_fields(of_reading(*READ)))
def site(
    context: typer.Context,
    action: Annotated[str | None, typer.Argument(help="approve: let a waiting experiment in; alone: show all.")] = None,
    number: Annotated[str | None, typer.Argument(help="After `approve`: the experiment's number.")] = None,
    hub: Annotated[str, typer.Option(help="The hub's host:port.")] = "",
    key: Annotated[Path | None, typer.Option(help="The site's private key; its name is the site's.")] = None,
    data: Annotated[str, typer.Option(help="The site's data: table, .npz file, image folder or a name.")] = "",
    model: Annotated[str, typer.Option(help="The site's model. [as the experiment says]")] = "auto",
    state: Annotated[Path, typer.Option(help="What the site keeps between rounds.")] = Path("~/.fedstill/site"),
    ca: Ca = None,
    insecure: Insecure = False,
    name: Annotated[str | None, typer.Option(help="The site's name, with --insecure. [the state folder's]")] = None,
    public: Annotated[str | None, typer.Option(help="Where this machine has the public set.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, mps or auto.")] = "cpu",
    policy: Annotated[Path | None, typer.Option(help="What the site takes part in (policy.toml).")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Take part in this method only, again for more.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Print what leaves the site, and start nothing.")] = False,
    health: Annotated[str | None, typer.Option(help="Serve /health and /metrics at this host:port. [nowhere]")] = None,
    keep_days: KeepDays = None,
) -> None:
    """Run a site: its own data, its own model, its own disk."""
    from fedstill.core.errors import UsageError
    from fedstill.data.reading import reading_of
    from fedstill.flower import site_process as sites
    from fedstill.flower.policy import read_policy

    if action is not None:
        from fedstill.flower.consent import approve, waiting_experiments

        if action != "approve":
            raise UsageError(f"site {action}: must be `site approve [NUMBER]`")
        print(waiting_experiments(state.expanduser()) if number is None else approve(state.expanduser(), number))
        return
    rules = read_policy(policy, tuple(only or ()))
    reading = reading_of(given(context))
    if explain:
        print(sites.explain(rules))
        if data:
            print(sites.introduction(data, reading))
        return
    for option, value in {"--hub": hub, "--data": data}.items():
        if not value:
            raise UsageError(f"{option} is missing")
    print(sites.explain(rules), file=sys.stderr)
    sites.site(
        hub, data, state, key, name, ca, insecure, model, public, device, rules, reading, health, keep_days
    )  # fmt: skip


@app.command()
def deploy(
    what: Annotated[str, typer.Argument(help="A method's name or an experiment.toml, as for `fedstill run`.")],
    hub: Annotated[str, typer.Option(help="The hub's host:port.")],
    sites: Annotated[int | None, typer.Option(help="Number of sites to wait for. [the experiment's clients]")] = None,
    name: Annotated[str | None, typer.Option(help="The run's name. [the file's or method's]")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="name=value: any setting of method or experiment.")
    ] = None,
    private: Annotated[
        list[str] | None, typer.Option(help="As of `run`: epsilon=8 for samples; clients,epsilon=4; again for both.")
    ] = None,
    secure_sums: Annotated[bool, typer.Option(help="The hub learns sums over the sites only.")] = False,
    compress: Annotated[str | None, typer.Option(help="As of `run`: quantise,width=8 or top-k,share=0.1.")] = None,
    ca: Ca = None,
    insecure: Insecure = False,
    token: Annotated[Path | None, typer.Option(help="The file with the hub's token. [~/.fedstill/hub/token]")] = None,
    sign: Annotated[Path | None, typer.Option(help="Sign the experiment with this person's key.")] = None,
    approve: Annotated[
        bool, typer.Option("--approve", help="Approve the experiment, for another person to start; start nothing.")
    ] = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the sites.")] = 60.0,
    patience: Annotated[float, typer.Option(help="Seconds to wait for a hub that is gone.")] = 600.0,
    out: Annotated[Path, typer.Option(help="Where the run folder comes home to.")] = Path("runs"),
    status: Annotated[bool, typer.Option("--status", help="Say how the run stands.")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="Stop the run; deploy again to go on with it.")] = False,
    logs: Annotated[bool, typer.Option("--logs", help="Print the run's log as it grows.")] = False,
    as_json: Json = False,
) -> None:
    """Train on the hub's sites, follow the run, bring its folder and models home."""
    from fedstill.core.errors import UsageError
    from fedstill.experiment.shorthand import wrapped
    from fedstill.flower.flwr_env import prepare

    prepare(Path("~/.fedstill/deploy").expanduser())
    from fedstill.flower.control import HubClient
    from fedstill.flower.messages import checked_name

    secret = token or STATE.expanduser() / "token"
    if not secret.exists():
        raise UsageError(f"--token {secret}: no such file; copy the hub's token from its state folder")
    run = checked_name("run", name or Path(what).stem)
    with HubClient(hub, ca, insecure, secret.read_text().strip()) as there:
        if status or stop or logs:
            _look(there, run, status, stop, as_json)
        else:
            plan = _planned(what, sites, settings or [], wrapped(private, secure_sums, compress))
            if approve:
                print(there.approve(run, plan.plain()))
            else:
                _deploy(there, run, plan, sign, wait, patience, out, as_json)


def _look(there: Any, run: str, status: bool, stop: bool, as_json: bool) -> None:
    from fedstill.core.errors import UsageError
    from fedstill.flower.messages import readable

    known = there.last(run)
    if known is None:
        raise UsageError(f"{there.address}: no run {run} there")
    if stop:
        if not known.over:
            there.stop(known.id)
        print(f"run {run} is stopped; `fedstill deploy` goes on with it from its last checkpoint")
    elif status:
        state = {"run": run, "status": known.status, "result": known.result, "details": known.details}
        state["rounds"] = 0 if known.status == "pending" else there.rounds(known.id)
        words = " ".join(filter(None, (known.status, known.result, known.details)))
        print(json.dumps(state) if as_json else f"run {run}: {readable(words)}, {state['rounds']} rounds done")
    else:
        for line in there.lines(known.id):
            print(readable(line, len(line)), flush=True)


def _planned(what: str, sites: int | None, settings: list[str], wrappers: list[dict[str, Any]]) -> Any:
    """The experiment to be deployed."""
    from fedstill.cli_app import apply_settings, read_plan
    from fedstill.experiment.config import experiment
    from fedstill.flower.enrolment import deployable

    plan = read_plan(what)
    if sites is not None:
        plan.update(clients=sites, **({} if "active" in plan else {"active": 1.0}))
    apply_settings(plan, settings)
    if wrappers:
        plan["wrappers"] = [*plan.get("wrappers", []), *wrappers]
    return deployable(experiment(plan))


def _deploy(
    there: Any, run: str, checked: Any, sign: Path | None, wait: float, patience: float, out: Path, as_json: bool
) -> None:
    from fedstill.cli_app import finish
    from fedstill.experiment.result import Result
    from fedstill.flower.control import deploy as follow
    from fedstill.flower.runbook import consented_part
    from fedstill.flower.signing import sign as signed
    from fedstill.report.terminal import Live

    signature = "" if sign is None else signed(sign, run, consented_part(checked.plain()))
    with Live(quiet=as_json) as live:

        def tell(news: Any) -> None:
            if "started" in news:
                live.note(f"run {run} on sites {', '.join(news['started']['sites'])}")
                if live.view is None and not live.rows:  # not again when the run goes on after the hub's restart
                    live.started(checked, None, None, news["started"]["first"])  # type: ignore[arg-type]
            elif "row" in news:
                live.round(news["row"])
                for site, why in news["row"]["missing_sites"].items():
                    live.note(f"round {news['row']['round']}: {site} was missing: {why}")
            elif "note" in news:
                live.note(news["note"])

        folder = follow(there, run, checked.plain(), out, wait, tell, patience, signature)
    finish(Result.read(folder), as_json)


@app.command()
def log(
    action: Annotated[str, typer.Argument(help="verify: check the chain of hashes; show: print the entries.")],
    file: Annotated[Path, typer.Argument(help="audit.jsonl in the state folder of a hub or a site.")],
) -> None:
    """Check or print the audit log of a hub or a site."""
    from fedstill.core.errors import UsageError
    from fedstill.flower import audit

    if action not in ("verify", "show"):
        raise UsageError(f"log {action}: must be verify or show")
    if action == "show":
        for entry in audit.entries(file):
            print(json.dumps(entry))
        return
    known = audit.verify(file)
    cut = f"; cut off by a crash: line {', '.join(map(str, known.cut))}" if known.cut else ""
    print(f"{file}: {known.lines} entries, none changed; last hash {known.last}{cut}")
