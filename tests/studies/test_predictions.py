"""Predictions as records."""

import json

import pytest

from jaxmarl_llm.studies.predictions import (
    AtLeast,
    AtMost,
    Higher,
    Within,
    prediction_of,
    record_of,
)


@pytest.mark.parametrize(
    "prediction",
    [
        Higher("x", "a", than="b", by=0.5, source="pilot", where="seeds 100 to 103"),
        Within("x", "a", than="b", by=0.1, source="paper", where="Table 1"),
        AtMost("x", "a", 0.0, source="theory", where="algebra", condition=True),
        AtLeast("x", "a", 2.0),
    ],
)
def test_a_prediction_survives_json(prediction):
    assert prediction_of(json.loads(json.dumps(record_of(prediction)))) == prediction


def test_a_record_that_is_no_prediction_is_refused():
    for record in ({"kind": "Above", "metric": "x"}, {"metric": "x"}, {"kind": "Lower", "metric": "x", "sign": 0}):
        with pytest.raises(ValueError, match="A prediction is one of Higher, Lower"):
            prediction_of(record)
