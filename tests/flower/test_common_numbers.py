"""A site that spoils what all sites share: normaliser, padding, classes; and a starter who names code at the hub."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from local_post import AVG, LocalPost, local_run
from test_messages import _changed, _summary, sites_of

pytest.importorskip("pydantic", reason="the deployed form needs the extra fedstill[flower]")

from fedstill.core.errors import FedstillError
from fedstill.experiment.config import experiment
from fedstill.flower.caps import far_ones, weighed
from fedstill.flower.enrolment import deployable, introduced, odd_ones, public_set, settle
from fedstill.flower.messages import DataSummary, Enrolled, answer
from fedstill.flower.site import Site

FLOATS: dict[str, Any] = {
    "size": 100, "kind": {"name": "image", "shape": [1, 8, 8], "mean": [0.3], "std": [0.4]}, "dtype": "float32",
    "measured_mean": [0.3], "measured_std": [0.4], "counts": [100], "lowest": 0.0, "class_names": ["0", "1"],
}  # fmt: skip
TABLE: dict[str, Any] = {
    **FLOATS, "class_names": ["no", "yes"], "measured_mean": [50.0], "measured_std": [9.0],
    "kind": {"name": "table", "numeric": ["age"], "categorical": ["sex"], "categories": [["f", "m"]]},
}  # fmt: skip


def party(base: dict[str, Any], **changes: Any) -> DataSummary:
    return DataSummary.model_validate_json(json.dumps({**base, **changes}))


@pytest.mark.parametrize(
    ("base", "changes", "words"),
    [
        (FLOATS, {"measured_mean": [1e5]}, "mean 1e+05"),
        (FLOATS, {"measured_std": [1e5]}, "± 1e+05"),
        (FLOATS, {"lowest": -1e6}, "lowest value is -1e+06"),
        (FLOATS, {"class_names": ["0", "9999"]}, "names 10,000 classes"),
        (FLOATS, {"class_names": [f"c{k}" for k in range(5000)]}, "names 5,000 classes"),
        (TABLE, {"kind": {**TABLE["kind"], "categories": [[f"c{k}" for k in range(5000)]]}}, "classes and categories"),
        (TABLE, {"measured_mean": [-1e6]}, "mean -1e+06"),
    ],
)
def test_numbers_far_from_everybodys_are_refused_by_name(
    base: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    """Three sites that differ as sites do, and a rogue whose numbers alone would scale their samples to nothing."""
    honest = {f"site-{k}": party(base, measured_mean=[base["measured_mean"][0] * (1 + k)]) for k in range(3)}
    assert far_ones(honest) == {}
    found = far_ones({**honest, "rogue": party(base, **changes)})
    assert list(found) == ["rogue"]
    assert words in found["rogue"]


def test_bytes_have_the_means_of_bytes() -> None:
    """Of uint8 images every value counts from 0 to 1: a mean of 5 cannot be, whatever the others say."""
    good = Enrolled(
        run="r", run_id="0" * 32, site="s", samples=90, tests=9, model="auto", public="", data="ab", turns=0,
        summary=party({**FLOATS, "dtype": "uint8"}),
    )  # fmt: skip
    introduced(good)
    for changes in ({"measured_mean": [5.0]}, {"measured_std": [5.0]}, {"lowest": -1.0}):
        bad = good.model_copy(update={"summary": party({**FLOATS, "dtype": "uint8"}, **changes)})
        with pytest.raises(FedstillError, match="no byte has"):
            introduced(bad)


def test_a_claim_that_is_held_down_moves_the_common_mean_no_further() -> None:
    """Means 0, 0 and 0.9 of 10, 10 and a claimed 980: counted as 20 the common mean is .45, by the claim .88."""
    from fedstill.data.summary import pooled

    parties = {"a": (10, 0.0), "b": (10, 0.0), "c": (980, 0.9)}
    enrolled = {
        name: Enrolled(
            run="r", run_id="0" * 32, site=name, samples=size, tests=0, model="auto", public="", data="ab", turns=0,
            summary=party(
                FLOATS, size=size, counts=[size], measured_mean=[mean],
                kind={**FLOATS["kind"], "mean": [mean], "std": [0.4]},
            ),
        )
        for name, (size, mean) in parties.items()
    }  # fmt: skip
    plan = deployable(experiment({**AVG, "clients": 3, "active": 1.0}))
    assert settle("r", "0" * 32, plan, enrolled).brought.mean == pytest.approx([0.45])  # type: ignore[attr-defined]
    claimed = [introduced(site) for site in enrolled.values()]
    assert pooled(claimed).mean == pytest.approx([0.882])  # type: ignore[attr-defined]
    assert weighed(claimed[0], 1.0) is claimed[0]


def test_a_rogue_with_a_normaliser_of_its_own_is_left_out_and_the_others_learn(
    sites_data: dict[str, Path], tmp_path: Path
) -> None:
    """It claims 10^9 samples and 9,999 classes: it is named, and the run is that of the three others."""
    honest = sites_of(sites_data, tmp_path)
    inner = Site("rogue", str(sites_data["site-a"]), tmp_path / "rogue")

    def rogue(head: bytes, body: bytes | None) -> tuple[bytes, bytes | None]:
        said, sent = inner.answer(head, body)
        if isinstance(answer(said), Enrolled):
            said = _summary(_changed(said, samples=10**9), size=10**9, counts=[10**9], class_names=["0", "9998"])
        return said, sent

    news: list[Any] = []
    rows = local_run({**honest, "rogue": rogue}, tmp_path / "runs", news, clients=3, rounds=1)
    assert any("rogue does not take part: it names 9,999 classes" in item.get("note", "") for item in news)
    assert sorted(rows[0]["client_seconds"]) == ["0", "1", "2"]
    assert odd_ones({}) == {}


@pytest.mark.parametrize("named", [{"model": "os:abort"}, {"method": {"name": "os:abort"}}, {"public": "os:abort"}])
def test_who_starts_a_run_cannot_run_code_on_the_hub(
    named: dict[str, Any], sites_data: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start token names `os:abort` as model, method or public set: the run ends with a line, nothing is called."""
    pytest.importorskip("flwr", reason="the deployed form needs the extra fedstill[flower]")
    from fedstill.flower import apps

    monkeypatch.setattr("os.abort", lambda *_: pytest.fail("the hub called what a starter named"))
    sites = sites_of(sites_data, tmp_path)
    plan = deployable(experiment({**AVG, "clients": 3, "active": 1.0, "rounds": 1})).plain()
    asked = plan | named

    def willing(site: Any) -> Any:  # a site that would take part in anything
        def answered(head: bytes, body: bytes | None) -> tuple[bytes, bytes | None]:
            return site(
                head.replace(json.dumps(json.dumps(asked)).encode(), json.dumps(json.dumps(plan)).encode()), body
            )

        return answered

    post = LocalPost({name: willing(site) for name, site in sites.items()})
    monkeypatch.setattr("fedstill.flower.post.Post", lambda *_: post)
    monkeypatch.setenv("FEDSTILL_RUNS", str(tmp_path / "runs"))
    monkeypatch.delenv("FEDSTILL_CODE", raising=False)
    order = {"run": "r", "experiment": json.dumps(asked), "wait": 1.0, "signature": ""}
    told: list[Any] = []
    monkeypatch.setattr(apps, "tell", told.append)
    context: Any = SimpleNamespace(run_config=order)
    with pytest.raises(FedstillError, match=r"os:abort.*not imported here"):
        apps.train(None, context)  # type: ignore[arg-type]
    assert "not imported here" in told[-1]["failed"]


def test_who_starts_a_run_reads_no_file_of_the_hub(sites_data: dict[str, Path]) -> None:
    """A path to a public set is for whoever keeps the machine to name."""
    plan = deployable(experiment({**AVG, "clients": 3, "public": str(sites_data["public"])}))
    with pytest.raises(FedstillError, match="--public and their own path"):
        public_set(plan, None)
    found = public_set(plan, str(sites_data["public"]))
    assert found is not None
    assert len(found.train) == 60
