"""A small model that several files of tests save and load."""

import pytest

from tests.support.families import weights
from tests.support.model_files import CONFIG


@pytest.fixture(scope="module")
def params() -> dict:
    return weights(CONFIG)
