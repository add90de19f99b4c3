"""Choices that identical domains must survive: kernels with few rows, matrices of equal values."""

import numpy as np
import pandas as pd
import pytest

from condokit import ConDoAdapter, IdentifiabilityWarning

LAWS = {
    "zero-inflated": lambda rng, size: (rng.random(size) < 0.3) * np.exp(rng.normal(size=size)),
    "count": lambda rng, size: rng.poisson(0.5, size=size).astype(float),
    "yes or no": lambda rng, size: (rng.random(size) < 0.2).astype(float),
}


@pytest.mark.filterwarnings("ignore:Nearly all values")
@pytest.mark.parametrize("law", list(LAWS))
def test_no_matrix_is_made_of_equal_values(law):
    for seed in range(4):
        rng = np.random.default_rng(seed)
        frame = pd.DataFrame(LAWS[law](rng, (400, 2)), columns=["x", "y"])
        frame = frame.assign(g=rng.choice(["a", "b"], 400), d=np.repeat(["q", "r"], 200))
        roles = {"domain": "d", "confounders": "g", "features": ["x", "y"]}
        with pytest.warns(IdentifiabilityWarning, match="Most values of 'x', 'y' are equal"):
            adapter = ConDoAdapter("affine", reference="r").fit(frame, **roles)
        assert adapter.map_.kind == "diagonal"
        assert adapter.report_["fallback"] == "location-scale"
        assert (np.abs(np.log(adapter.map_.scale)) < 0.7).all()
        plain = ConDoAdapter("affine", reference="r", divergence="ot").fit(frame, **roles)
        assert plain.map_.kind == "dense"


def test_a_kernel_with_few_rows_in_a_category_is_warned_of_and_keeps_its_scale():
    scales = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        frame = pd.DataFrame({"x": rng.normal(size=120), "z": rng.normal(size=120)})
        frame = frame.assign(g=rng.choice(list("abcdefgh"), 120), d=np.repeat(["q", "r"], 60))
        roles = {"domain": "d", "confounders": ["g", "z"], "features": "x"}
        with pytest.warns(IdentifiabilityWarning, match="A kernel smooths within categories"):
            adapter = ConDoAdapter(
                reference="r", conditional="kernel", divergence="reverse-kl"
            ).fit(frame, **roles)
        scales.append(adapter.map_.scale[0])
    assert min(scales) > 0.4  # 0.007 before variances of few rows leaned on others
