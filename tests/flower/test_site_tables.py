"""Sites with tables: what they agree on when a run begins, who is named when they cannot, and what they tell."""

import json
from pathlib import Path

import pytest
from smallest import small_method

from fedstill.cli import main
from fedstill.core.errors import DataError
from fedstill.data.reading import Reading
from fedstill.experiment.config import experiment
from fedstill.flower.enrolment import settle
from fedstill.flower.messages import FORMAT, Enrol, Enrolled, answer
from fedstill.flower.site import Site
from fedstill.flower.site_process import introduction

A = "age,sex,y\n" + 12 * "10,f,no\n30,m,yes\n20,f,no\n40,m,yes\n"
B = "y,sex,age\n" + 12 * "no,x,50\nno,m,\nyes,m,70\nno,x,60\n"
PLAN = {"method": small_method("fedavg"), "data": "sites", "clients": 2, "active": 1.0, "rounds": 1, "local_test": 0.25}


def enrolled(tmp_path: Path, name: str, text: str) -> tuple[Site, Enrolled]:
    path = tmp_path / f"{name}.csv"
    path.write_text(text)
    site = Site(name, str(path), tmp_path / f"state-{name}", reading=Reading(label="y"))
    plan = json.dumps(experiment(PLAN).plain())
    asked = Enrol(run="r", run_id="0" * 32, format=FORMAT, experiment=plan, signature="")
    found = answer(site.answer(asked.dumps())[0])
    assert isinstance(found, Enrolled)
    return site, found


def test_columns_in_another_order_and_other_categories_are_agreed_on(tmp_path: Path) -> None:
    """All categories: f, m, x. Of 7 ages that add up to 280 the mean is 40. A missing age at b is a mark for all."""
    sites = {name: enrolled(tmp_path, name, text) for name, text in (("a", A), ("b", B))}
    setting = settle("r", "0" * 32, experiment(PLAN), {name: found for name, (_, found) in sites.items()})
    kind = setting.brought.plain()
    assert (kind["numeric"], kind["categorical"], kind["categories"]) == (["age"], ["sex"], [["f", "m", "x"]])
    assert kind["mean"] == pytest.approx([40.0])
    assert kind["missing"] == ["age"]
    assert setting.class_names == ("no", "yes")
    assert setting.specs == ("tabresnet",) * 3
    own = sites["b"][0].own.cast(setting.brought, setting.class_names)
    assert own.train.x[[0, 2, 3]].tolist() == [[50.0, 2.0], [70.0, 1.0], [60.0, 2.0]]


def test_a_site_with_another_column_is_named(tmp_path: Path) -> None:
    odd = {"a": enrolled(tmp_path, "a", A)[1], "b": enrolled(tmp_path, "b", B.replace("age", "weight"))[1]}
    with pytest.raises(DataError, match="site b: has a column 'weight', site a has none; they must agree"):
        settle("r", "0" * 32, experiment(PLAN), odd)


def test_what_a_site_tells_of_its_table_can_be_read_before(tmp_path: Path) -> None:
    """Ages 50, 70, 60: mean 60, deviation √(200/3) = 8.16497, 3 of 4 values, 12 times."""
    (tmp_path / "b.csv").write_text(B)
    lines = introduction(str(tmp_path / "b.csv"), Reading(label="y")).splitlines()
    assert "  age: mean 60, deviation 8.16497, 36 values" in lines
    assert "  sex: m, x" in lines
    assert "  classes: no, yes" in lines


def test_a_site_says_what_a_column_holds_where_others_take_it_for_something_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wards 1 and 2 look like numbers at a, m and x do not at b: a says that they are categories."""
    wards = {"a": A.replace("sex", "ward").replace(",f", ",1").replace(",m", ",2"), "b": B.replace("sex", "ward")}
    with pytest.raises(DataError, match="site b: column 'ward' holds categories, not so at site a; say which it is"):
        settle("r", "0" * 32, experiment(PLAN), {n: enrolled(tmp_path, n, text)[1] for n, text in wards.items()})
    with pytest.raises(SystemExit) as end:
        main(["site", "--explain", "--data", str(tmp_path / "a.csv"), "--label", "y", "--categorical", "ward"])
    assert not end.value.code
    assert "  ward: 1, 2\n" in capsys.readouterr().out


def test_large_numbers_are_no_reason_to_be_left_out(tmp_path: Path) -> None:
    """Incomes of tens of millions: mean 25,000,000."""
    rich = A.replace("age", "income").replace("0,f", "0000000,f").replace("0,m", "0000000,m")
    assert enrolled(tmp_path, "a", rich)[1].summary.measured_mean == pytest.approx([25e6])
