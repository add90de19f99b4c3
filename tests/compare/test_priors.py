import numpy as np
import pytest

from condokit import NoOverlapError, ProductPrior
from condokit.compare.priors import PRIORS
from condokit.data.domains import Strata

QUERY, REFERENCE = np.array([10, 30, 0, 5]), np.array([60, 20, 7, 0])


def strata(query=QUERY, reference=REFERENCE):
    levels = [(letter,) for letter in "abcd"[: len(query)]]
    return Strata(["z"], levels, np.empty(0, int), np.array(query), np.array(reference))


def test_weights_agree_with_a_loop_over_rows_written_from_the_equation():
    """Paper: every pooled row is weighted by the product of both domains' shares of its value."""
    rows = [k for k in range(4) for _ in range(QUERY[k] + REFERENCE[k])]
    by_row = [QUERY[k] / QUERY.sum() * REFERENCE[k] / REFERENCE.sum() for k in rows]
    expected = np.array([sum(w for w, k in zip(by_row, rows) if k == j) for j in range(2)])
    support = PRIORS["paper"]().support(None, strata())
    np.testing.assert_allclose(support.weights, expected / expected.sum())


def test_the_true_product_is_half_from_each_side():
    """Half the mass on query rows weighted by the reference's share, half the other way round."""
    product = (QUERY / QUERY.sum() * REFERENCE / REFERENCE.sum())[:2]
    support = PRIORS["product"]().support(None, strata())
    np.testing.assert_allclose(support.weights, product / product.sum())


@pytest.mark.parametrize("name", PRIORS)
def test_values_of_one_domain_are_dropped_and_listed(name):
    support = PRIORS[name]().support(None, strata())
    assert support.levels == [("a",), ("b",)]
    assert support.weights.sum() == pytest.approx(1)
    assert support.dropped == [
        {"z": "c", "n_query": 0, "n_reference": 7},
        {"z": "d", "n_query": 5, "n_reference": 0},
    ]
    assert "not compared (one domain only): ('c',), ('d',)" in repr(support)


def test_no_common_value_shows_the_counts():
    with pytest.raises(NoOverlapError, match="'z' has no level in both domains") as error:
        ProductPrior().support(None, strata([30, 0], [0, 4]))
    assert "z  n_query  n_reference\na       30            0\nb        0           <5" in str(
        error.value
    )


def test_wrong_variant():
    with pytest.raises(ValueError, match="'product' or 'paper'"):
        ProductPrior(variant="sqrt").support(None, strata())
