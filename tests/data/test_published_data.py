"""The real data sets, where FEDSTILL_DATA has them; skipped where it is not set."""

import os

import pytest
import torch

from fedstill.data import load, located
from fedstill.data.kinds import Image
from fedstill.data.pixels import fitted

there = [name for name, where in located() if where and "FEDSTILL_DATA" in os.environ and os.path.exists(where)]


@pytest.mark.skipif(not there, reason="FEDSTILL_DATA is not set, or holds no data set")
@pytest.mark.parametrize("name", there or ["none"])
def test_a_published_data_set_is_whole_and_its_constants_fit(name):
    """Every class is there, sites have samples, and of images a thousand have mean ≈ 0 and deviation ≈ 1."""
    data = load(name)
    assert data.test is not None
    assert data.train.counts(data.classes).min() > 0
    assert data.test.counts(data.classes).min() > 0
    assert data.sites is None or len(data.sites.train) == len(data.train)
    if not isinstance(data.kind, Image):
        assert torch.isfinite(data.train[:1000].inputs()).all()
        return
    images = data.train[:1000].inputs()
    assert abs(images.mean()) < 0.15
    assert abs(images.std() - 1) < 0.15
    assert fitted(data, (32,)).train.shape[1:] == (32, 32)
