"""Fixtures for all tests."""

from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"
