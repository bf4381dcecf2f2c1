"""What people see of privacy: the page's section, a method's card, and the command that audits."""

import json
from pathlib import Path
from typing import Any

from smallest import small_method
from typer.testing import CliRunner

from fedstill.cli import app
from fedstill.experiment.result import Result
from fedstill.experiment.rundir import RunDir
from fedstill.report.catalogue import card
from fedstill.report.digest import digest, series_of
from fedstill.report.plain import story
from fedstill.report.privacy import coverage, show_audit
from fedstill.report.privacy_page import section_of
from fedstill.report.sections import leaves

INTERVAL = {"value": 0.5, "low": 0.25, "high": 0.75}
AUDIT = {
    "method": "fedavg",
    "round": 3,
    "privacy": {"epsilon_samples": 1.0, "delta": 1e-3},
    "membership": [{"target": "model active", "attack": "loss threshold", "auc": INTERVAL, "tpr": INTERVAL}],
    "label_shares": {**INTERVAL, "guessing": 0.1, "clients": 2},
    "reconstruction": {"likeness": 0.25, "samples": 50},
}


def rounds(*facts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"round": t + 1, "facts": told, "models": {}, "bytes": {}, "seconds": {}} for t, told in enumerate(facts)]


def test_the_page_has_every_clients_epsilon_and_what_an_audit_found(tmp_path: Path) -> None:
    """Client 1 takes part in the first round only: what it has spent still stands in the second."""
    folder = RunDir(tmp_path)
    folder.write("audit.json", AUDIT)
    told = [{"epsilon_spent": {"0": 0.5, "1": 0.75}, "delta": 1e-5}, {"epsilon_spent": {"0": 0.9}, "delta": 1e-5}]
    shown = section_of([Result({}, rounds(*told), tmp_path)])
    assert "0: 0.5, 1: 0.75" in shown
    assert "0: 0.9, 1: 0.75</td><td>0.9</td><td>1e-05</td>" in shown, "then the largest, then δ"
    assert "epsilon_samples = 1, delta = 0.001" in shown
    assert "0.500 (0.250 to 0.750)" in shown


def test_samples_and_sites_are_told_apart_each_with_its_delta(tmp_path: Path) -> None:
    RunDir(tmp_path).write("partition.json", {"client_names": ["North", "South"]})
    told = {"epsilon_spent": {"0": 7.5, "1": 6.0}, "delta": 1e-3, "epsilon_clients": 3.5, "delta_clients": 1e-5}
    row = {**rounds(told)[0], "active": [0, 1], "bytes": {"up": {"weights": 2000}}}
    row |= {"models": {"active": {"amp": 0.8, "accuracy_per_client": [0.9, 0.7]}}}
    result = Result({"method": {"name": "fedavg"}, "data": "d", "clients": 2}, [row], tmp_path)
    shown = section_of([result])
    assert "North: 7.5, South: 6</td><td>7.5</td><td>0.001</td>" in shown
    assert "all: 3.5</td><td>3.5</td><td>1e-05</td>" in shown
    opening = story(series_of([result]))
    assert (
        "any one sample: at most ε = 7.5 at δ = 0.001 was spent, at North; and any one site: at most ε = 3.5" in opening
    )
    assert "at δ = 1e-05 was spent; the smaller ε" in opening


def test_a_run_with_noise_lends_none_to_one_without(tmp_path: Path) -> None:
    private = {"name": "private-samples", "epsilon": 8.0, "delta": 1e-5}
    plans = [{"method": {"name": "fedavg"}, "data": "d", "clients": 1, "wrappers": w} for w in ([], [private])]
    row = {**rounds({})[0], "active": [0], "bytes": {"up": {"weights": 10}, "down": {}}}
    row |= {"models": {"active": {"amp": 0.8, "accuracy_per_client": [0.8]}}}
    page = leaves(digest(series_of([Result(plan, [row], tmp_path) for plan in plans])))
    assert page.count("model weights") == 2
    assert page.count("covered: (ε ≤ 8") == 1


def test_the_opening_names_the_site_that_spent_most(tmp_path: Path) -> None:
    """South spends ε = 2, more than North's 1; the model is right for .9 of North's tests and .7 of South's."""
    RunDir(tmp_path).write("partition.json", {"client_names": ["North", "South"]})
    plan = {"method": {"name": "fedavg"}, "data": "d", "clients": 2}
    row = {**rounds({"epsilon_spent": {"0": 1.0, "1": 2.0}, "delta": 1e-5})[0], "active": [0, 1]}
    row |= {"models": {"active": {"amp": 0.8, "accuracy_per_client": [0.9, 0.7]}}, "bytes": {"up": {"weights": 2000}}}
    told = story(series_of([Result(plan, [row], tmp_path)]))
    assert "reaches 80.00 % (accuracy averaged over the clients&#x27; own tests), and 70.00 % at South" in told
    assert "What left a site, 1.0 kB a round: weights: model weights." in told
    assert "hides any one sample: at most ε = 2 at δ = 1e-05 was spent, at South" in told
    assert "North: 1, South: 2" in section_of([Result(plan, [row], tmp_path)])
    assert "for 1 round." in told
    in_one_place = {**plan, "method": {"name": "centralised"}}
    assert story(series_of([Result(in_one_place, [row], tmp_path)])) == "", "that is no federation"


def test_runs_of_different_epsilon_are_shown_by_it() -> None:
    """Two runs, without privacy at an AMP of .9 and at ε = 1 (the larger of two clients') at .7: in this order."""

    def run(amp: float, *facts: dict[str, Any]) -> Result:
        return Result({}, [{**row, "models": {"active": {"amp": amp}}} for row in rounds(*facts)])

    private = run(0.7, {"epsilon_spent": {"0": 0.5, "1": 1.0}, "delta": 1e-5})
    shown = section_of([private, run(0.9, {})])
    after = shown[shown.index("Accuracy against ε") :]
    assert after.index("∞") < after.index("90.00") < after.index(">1<") < after.index("70.00")
    assert "Accuracy against" not in section_of([private])


def test_runs_without_privacy_or_audit_have_no_such_section() -> None:
    assert section_of([Result({}, rounds({}))]) == ""


def test_a_methods_card_says_what_covers_each_field() -> None:
    found = card("ccvr")["covered_by"]
    assert found["--private epsilon=8"]["counts"] == "label counts; not covered: read off the labels"
    assert "needs every client's own upload" in found["--secure-sums"]["refused"]
    sums = coverage(small_method("fedkf"))["--secure-sums"]
    assert sums.keys() == {"weights", "change", "version"}
    shown = CliRunner().invoke(app, ["show", "fedavg"]).output
    assert "--private epsilon=8" in shown
    assert "covered: (ε ≤ 8" in shown
    assert "none of these covers what a deployed site tells beside its uploads" in " ".join(shown.split())


def test_the_terminal_tells_what_an_audit_found(capsys: Any) -> None:
    show_audit(AUDIT)
    out = capsys.readouterr().out
    assert "promised: epsilon_samples = 1, delta = 0.001" in out
    assert "0.500 (0.250 to 0.750)" in out
    assert "likeness 0.2500 to the nearest of 50" in out
    show_audit({**AUDIT, "privacy": {}, "label_shares": None, "reconstruction": {"skipped": "no weights"}})
    assert "promised: none" in capsys.readouterr().out


def test_what_left_is_told_with_what_was_done_to_it(tmp_path: Path) -> None:
    words = (
        f"run fedavg --data digits --samples 200 --clients 2 --active 2 --rounds 1 --workers inline --out {tmp_path}"
    )
    runs = CliRunner().invoke(app, [*words.split(), "--compress", "quantise,width=4", "--set", "epochs=1", "--json"])
    result = Result.read(Path(json.loads(runs.output)["run_dir"]))
    assert digest(series_of([result]))["groups"][0]["leaves"]["codes"].endswith("4 bits a weight")
    assert result.experiment["wrappers"] == [{"name": "quantise", "width": 4}]
