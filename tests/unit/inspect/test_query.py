"""A query of a model file uses the names of its arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import Invalid
from shoal.inspect.query import SavedModel
from shoal.models.inputs import ModelInputs
from shoal.models.torch_module import Module
from shoal.models.trained import TrainedModule

TENSORS: dict[str, Any] = {
    "body.weight": np.array([[1, -2, 3], [0, 0, 4]], np.float32),
    "count": np.array(7, np.int64),  # not weights
    "scale": np.array(-5, np.float32),
    "head.bias": np.array([0.5, 6], np.float64),
}


def model() -> TrainedModule:
    return TrainedModule(Module(net="linear"), ModelInputs((3,), False, 1.0, 0.0, 2), TENSORS)


def test_the_weights_of_a_module_are_known_by_the_names_of_its_parameters() -> None:
    asked = SavedModel(model(), "m", None)
    named = [(asked.name(key, place), weight) for key, place, weight in asked.ask("top", k=4)]
    assert named == [("head.bias[1]", 6.0), ("scale", -5.0), ("body.weight[1, 2]", 4.0), ("body.weight[0, 2]", 3.0)]
    assert shoal.query(model(), "nonzeros") == {"weights": 9, "nonzero": 7, "negative": 2}


def test_a_module_without_weights_has_none_to_show() -> None:
    empty = TrainedModule(model().model, model().inputs, {})
    assert shoal.query(empty, "overview")["weights"] == 0 and shoal.query(empty, "top") == []


def test_what_has_no_model_is_refused() -> None:
    for what in (3, None, object()):
        with pytest.raises(Invalid, match="has no model that could be asked"):
            shoal.query(what, "count")  # type: ignore[arg-type]
