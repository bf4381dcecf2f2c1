"""Partitions that are found, not drawn: sites, given indices, saved partitions."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from smallest import small_method

import fedstill
from fedstill.core.errors import UsageError
from fedstill.core.shelf import Storage
from fedstill.data import BySite, Given, Saved
from fedstill.experiment.config import experiment
from fedstill.experiment.run import start
from fedstill.experiment.stage import stage

SITES = ["b"] * 12 + ["a"] * 8 + ["c"] * 3 + ["d"] * 2
TEST_SITES = ["a"] * 4 + ["b"] * 2


def arrays(**more: Any) -> dict[str, Any]:
    x = torch.arange(25.0)[:, None] * torch.ones(25, 3)
    return {"x": x, "y": np.arange(25) % 2, "site": SITES, **more}


def staged(data: Any, **settings: Any) -> Any:
    return stage(experiment({"method": small_method("fedavg"), "data": data, **settings}), Storage())


def test_every_site_is_a_client_when_nothing_else_is_asked() -> None:
    """Sites in the order of their names: a 8, b 12, c 3, d 2; a fifth of each is its test (1 of 2 at least)."""
    plan = experiment({"method": small_method("fedavg"), "data": arrays()})
    assert (plan.clients, plan.active, plan.partition) == (4, 1.0, BySite())
    ready = stage(plan, Storage())
    assert ready.client_names == ("a", "b", "c", "d")
    assert [len(part) for part in ready.dealt] == [8, 12, 3, 2]
    assert ready.env.sizes == (6, 10, 2, 1)
    assert [len(local) for local in ready.exam.local] == [2, 2, 1, 1]
    assert ready.dealt[0].tolist() == list(range(12, 20))


def test_a_site_is_tested_on_its_own_test_part() -> None:
    """a has 4 test samples, b 2; c and d give up a share of their training samples."""
    test = {"x_test": torch.full((6, 3), 99.0), "y_test": [0, 1, 0, 1, 0, 1], "site_test": TEST_SITES}
    ready = staged(arrays(**test))
    assert ready.env.sizes == (8, 12, 2, 1)
    assert [len(local) for local in ready.exam.local] == [4, 2, 1, 1]
    own = ready.exam.pool[ready.exam.local[0]]
    assert own.x.unique().tolist() == [99.0]
    assert own.y.tolist() == [0, 1, 0, 1]
    assert ready.exam.whole is not None
    assert ready.exam.pool[ready.exam.whole].x.unique().tolist() == [99.0]


def test_a_small_site_alone_is_merged_with_the_smallest_other() -> None:
    """Sites a, b, c, d have 8, 12, 3 and 2 samples; only d has fewer than 3, so it joins c."""
    merged = staged(arrays(), partition=BySite(min_samples=3, small="merge"))
    assert merged.client_names == ("a", "b", "c + d")
    assert "1 small sites merged with c (d: 2)" in merged.notes


def test_small_sites_are_refused_merged_or_dropped() -> None:
    with pytest.raises(UsageError, match=r"2 of 4 sites have fewer than 4 samples \(c: 3, d: 2\); ask for"):
        staged(arrays(), partition=BySite(min_samples=4))
    merged = staged(arrays(), partition=BySite(min_samples=4, small="merge"))
    assert merged.client_names == ("a", "b", "c + d")
    assert [len(part) for part in merged.dealt] == [8, 12, 5]
    assert "2 small sites merged into 1 (c: 3, d: 2)" in merged.notes
    dropped = staged(arrays(), partition=BySite(min_samples=4, small="drop"))
    assert [len(part) for part in dropped.dealt] == [8, 12]


def test_another_partition_or_number_of_clients_is_what_the_user_says() -> None:
    assert staged(arrays(), partition="iid", clients=5).env.clients == 5
    with pytest.raises(UsageError, match="clients = 7: the data have 4 sites; leave clients out, or name a partition"):
        staged(arrays(), clients=7)
    with pytest.raises(UsageError, match="digits does not say which site a sample is from"):
        staged("digits", partition="sites")


def test_given_indices_are_the_clients() -> None:
    ready = staged(arrays(), partition=Given(parts=((0, 2, 4, 1), (5, 6, 7))), local_test=0.25)
    assert [part.tolist() for part in ready.dealt] == [[0, 1, 2, 4], [5, 6, 7]]
    assert "18 of 25 samples are given to nobody" in ready.notes
    with pytest.raises(UsageError, match="sample 5 is given to several clients"):
        staged(arrays(), partition=Given(parts=((0, 5), (5, 6))))
    with pytest.raises(UsageError, match="sample 25; own data has samples 0 to 24"):
        staged(arrays(), partition=Given(parts=((0, 25), (5, 6))))


def test_a_client_whose_samples_all_became_public_is_named() -> None:
    everything = Given(parts=(tuple(range(25)),))
    (left,) = staged(arrays(), partition=everything, public=0.4).dealt
    alone = tuple(sorted(set(range(25)) - set(left.tolist()))[:2])
    rest = tuple(k for k in range(25) if k not in alone)
    with pytest.raises(UsageError, match="client 1 has no samples left to train on, all became public"):
        staged(arrays(), partition=Given(parts=(rest, alone)), public=0.4)


def test_a_partition_is_saved_with_the_run_and_used_again(tmp_path: Path) -> None:
    plan = {"method": small_method("fedavg"), "data": "digits", "samples": 200, "rounds": 1, "workers": "inline"}
    drawn = experiment({**plan, "clients": 4, "alpha": 0.5, "active": 1.0})
    start(drawn, out=tmp_path, name="drawn")
    file = tmp_path / "drawn" / "split.json"
    assert sum(map(len, json.loads(file.read_text())["parts"])) == 200
    again = stage(experiment({**plan, "partition": Saved(path=str(file))}), Storage())
    assert [part.tolist() for part in again.dealt] == [part.tolist() for part in stage(drawn, Storage()).dealt]
    usual = experiment({"method": "fedavg", "partition": Saved(path=str(file))})
    assert (usual.data, usual.clients) == ("mnist-5k", 4), "data that nobody names are the usual ones"


def test_rows_of_a_frame_run_by_site(tmp_path: Path) -> None:
    import pandas

    rng = np.random.default_rng(0)
    age = rng.normal(50, 10, 120)
    frame = pandas.DataFrame({"age": age, "at": rng.choice(["A", "B"], 120), "ill": np.where(age > 50, "yes", "no")})
    method = small_method("fedavg", epochs=5)
    result = fedstill.run(
        method, data=frame, label="ill", site="at", rounds=5, workers="inline", out=tmp_path, name="r"
    )
    assert result.last("active")["amp"] > 0.9
    assert json.loads((tmp_path / "r" / "partition.json").read_text())["client_names"] == ["A", "B"]
    assert result.experiment["reading"]["label"] == "ill"


def test_parties_with_other_orders_of_columns_and_other_categories_agree(tmp_path: Path) -> None:
    """Codes are those of all categories together: f 0, m 1, x 2; b knows m and x only."""
    (tmp_path / "a.csv").write_text("age,sex,y\n10,f,no\n30,m,yes\n")
    (tmp_path / "b.csv").write_text("y,sex,age\nno,x,50\nno,m,70\n")
    ready = staged([str(tmp_path / "a.csv"), str(tmp_path / "b.csv")], label="y", local_test=0.0)
    kind = ready.env.kind
    assert kind.categories == (("f", "m", "x"),)
    assert kind.mean == (40.0,)
    assert ready.party(1).data.x.tolist() == [[50.0, 2.0], [70.0, 1.0]]
    assert ready.class_names == ("no", "yes")


def test_the_party_with_another_column_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,y\n10,no\n30,yes\n")
    (tmp_path / "b.csv").write_text("y,weight\nno,50\nno,70\n")
    paths = [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]
    with pytest.raises(fedstill.core.errors.DataError, match=r"b.csv: has a column 'weight', .*a.csv has none"):
        staged(paths, label="y")
