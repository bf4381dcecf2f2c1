"""Experiments: checked before anything runs, written and read without loss."""

import tomllib
from pathlib import Path

import pytest
from smallest import small_method

from fedstill.core.errors import UsageError
from fedstill.core.method import methods
from fedstill.data import IID, Dirichlet
from fedstill.experiment.config import experiment, read
from fedstill.experiment.toml import toml
from fedstill.report.catalogue import starter


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"alpha": 0}, "alpha = 0.0: must be > 0"),
        ({"active": 30, "clients": 20}, "active = 30: there are only 20 clients"),
        ({"active": 2.5}, "active = 2.5: must be a share"),
        ({"active": 0}, "active = 0.0: must be > 0"),
        ({"method": "fedvg"}, "unknown method 'fedvg'; did you mean fedavg?"),
        ({"partition": "dirichet"}, "unknown partition 'dirichet'; did you mean dirichlet?"),
        ({"method": {"name": "fedavg", "lr": -1}}, "lr = -1.0: must be > 0"),
        ({"method": {"name": "fedavg", "rate": 1}}, "unknown setting of FedAvg 'rate'"),
        ({"workers": "many"}, "workers = many: must be a number ≥ 1, auto, inline or threads"),
        ({"workers": 0}, "workers = 0: must be"),
        ({"rounds": 0}, "rounds = 0: must be ≥ 1"),
        ({"models": ["cnn1", "cnn2"]}, "all clients need one model"),
        ({"malicious": 0.5}, "attack and malicious go together"),
        ({"colour": 1}, "unknown setting of Experiment 'colour'"),
    ],
)
def test_bad_settings_get_one_line(settings: dict[str, object], line: str) -> None:
    with pytest.raises(UsageError) as error:
        experiment(settings)
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_active_clients_by_share_and_by_number() -> None:
    """m = max(1, round(C·K)): .2 of 20 is 4, .01 of 20 is 1, 7 is 7, 1 is all of them."""
    for given, expected in ((0.2, 4), (0.01, 1), (7, 7), (1, 20)):
        assert experiment({"active": given}).active_count == expected


def test_alpha_is_short_for_the_partitions() -> None:
    assert experiment({"alpha": 0.3}).partition == Dirichlet(alpha=0.3)
    assert experiment({"partition": "iid"}).partition == IID()
    assert experiment({"partition": "dominant", "alpha": 2}).plain()["partition"]["alpha"] == 2.0


@pytest.mark.parametrize("name", sorted(methods))
def test_a_starter_file_says_everything_and_comes_back(name: str, tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(starter(name))
    again = experiment(read(file))
    assert again == experiment({"method": name})
    assert tomllib.loads(toml(again.plain())) == again.plain()


def test_plain_settings_come_back_as_the_same_experiment() -> None:
    plan = experiment({"method": small_method("fedkf", gamma=0.5), "alpha": 0.01, "samples": 100, "clients": 5})
    assert experiment(plan.plain()) == plan


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere.toml: no such file"):
        read(tmp_path / "nowhere.toml")
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with pytest.raises(UsageError, match=r"bad.toml: "):
        read(tmp_path / "bad.toml")


def test_every_second_client_is_malicious() -> None:
    """The paper's even ids, counted from 1: 5 of 10, 7 of 15, 10 of 20."""
    for clients, expected in ((10, 5), (15, 7), (20, 10)):
        plan = experiment({"clients": clients, "malicious": 0.5, "attack": "label-flip"})
        assert plan.malicious_clients == tuple(range(1, 2 * expected, 2))
