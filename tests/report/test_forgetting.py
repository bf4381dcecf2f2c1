"""The forgetting pictures show the numbers of the run, without touching pyplot."""

import subprocess
import sys

import numpy as np
import pytest
from smallest import small_experiment, small_method

from fedstill.core.errors import UsageError
from fedstill.experiment.result import Result
from fedstill.experiment.run import start
from fedstill.report.figures.forgetting import local_figure, rounds_figure, turn


def made() -> Result:
    """Two rounds, two classes. The model has .8 and .2 after round 1; in round 2 client 4 goes to .9 and .1, client 7
    to .2 and .9; then the average has .6 and .5.
    """
    rows = [
        {"round": 1, "models": {"active": {"per_class": [0.8, 0.2]}}, "client_seconds": {"4": 1.0}},
        {
            "round": 2,
            "models": {"active": {"per_class": [0.6, 0.5], "per_class_after_training": [[0.9, 0.1], [0.2, 0.9]]}},
            "client_seconds": {"4": 1.0, "7": 1.0},
        },
    ]
    return Result({}, rows)


def test_a_turn_is_read_off_the_rounds():
    """Client 7 forgets .6 of class 0 and gains on class 1: a mean of .3; client 4 forgets .1 of class 1: .05."""
    most = turn(made())
    assert (most.client, most.round, most.forgotten) == (7, 2, pytest.approx(0.3))
    other = turn(made(), round=2, client=4)
    assert other.forgotten == pytest.approx(0.05)
    assert (other.before.tolist(), other.after.tolist()) == ([0.8, 0.2], [0.9, 0.1])


def test_before_and_after_are_drawn():
    figure = local_figure({"IID": made(), "non-IID": made()}, client=7)
    assert len(figure.axes) == 2
    for axes, label in zip(figure.axes, ("IID", "non-IID"), strict=True):
        assert np.allclose(axes.images[0].get_array(), [[0.8, 0.2], [0.2, 0.9]])
        assert [t.get_text() for t in axes.texts] == ["80", "20", "20", "90"]
        assert axes.get_title(loc="left") == f"{label}: client 7 in round 2, mean 0.50 → 0.55, forgotten 0.30"


def test_classes_over_rounds_are_drawn():
    """Class 0 goes from .8 to .6, class 1 from .2 to .5: .2 and nothing forgotten, a mean of .1."""
    axes = rounds_figure(made()).axes[0]
    assert np.allclose(axes.images[0].get_array(), [[0.8, 0.6], [0.2, 0.5]])
    assert axes.get_title(loc="left") == "10.0 % of a class forgotten a round"


@pytest.mark.parametrize("name", ["fedavg", "fedrad"])
def test_any_method_can_be_asked(name, runs):
    """The run's folder adds class names and the client's own samples."""
    plan = small_experiment(small_method(name, lr=0.1), rounds=3, active=1.0, per_class=True)
    result = start(plan, out=runs, name=name)
    seen = turn(result)
    assert seen.round == 3
    assert seen.held is not None
    assert 0 < seen.held.sum() < 400
    labels = [t.get_text() for t in local_figure(result).axes[0].get_yticklabels()]
    assert labels == ["samples held", "before", "after"]
    assert rounds_figure(result).axes[0].images[0].get_array().shape == (10, 3)


def test_what_is_missing_is_told():
    bare = Result({}, [{"round": 1, "models": {"active": {"amp": 0.5}}, "client_seconds": {}}])
    with pytest.raises(UsageError, match="--track per-class"):
        rounds_figure(bare)
    with pytest.raises(UsageError, match="no two rounds in a row were evaluated"):
        turn(Result({}, made().rows[:1]))
    with pytest.raises(UsageError, match="round = 1: must be one of 2 … 2"):
        turn(made(), round=1)
    with pytest.raises(UsageError, match="client = 5: not active in round 2; active: 4, 7"):
        turn(made(), client=5)
    with pytest.raises(UsageError, match="unknown tracked model of this run 'overall'"):
        rounds_figure(made(), "overall")


def test_pyplot_is_never_imported():
    code = "import sys, fedstill.report.figures.forgetting; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
