"""What two domains have in common: what is compared, refused and warned of."""

import numpy as np
import pandas as pd
import pytest
from reading import from_pair

from condokit import LowOverlapWarning, NoOverlapError
from condokit.compare.comparison import compare


def two(groups_query, groups_reference, ages=None):
    """Read two domains with a category, and with ages if they are given."""
    rng = np.random.default_rng(0)
    tables = []
    for k, groups in enumerate((groups_query, groups_reference)):
        table = pd.DataFrame({"group": groups})
        if ages is not None:
            table["age"] = ages[k]
        tables.append(table)
    rows = (rng.normal(size=(len(table), 2)) for table in tables)
    return from_pair(*rows, *tables)


def test_strata_of_both_domains_are_compared_with_product_weights():
    found = compare(two(["a"] * 6 + ["b"] * 2, ["a"] * 3 + ["b"] * 9), quiet=True)
    shares = np.array([6 / 8 * 3 / 12, 2 / 8 * 9 / 12])
    np.testing.assert_allclose(found.support.weights, shares / shares.sum())
    assert found.fewest_rows == 8


def test_levels_of_one_domain_are_left_out_and_named():
    domains = two(["a"] * 9 + ["b"] * 9 + ["new"] * 6, ["a"] * 9 + ["b"] * 9)
    with pytest.warns(LowOverlapWarning, match="new") as caught:
        found = compare(domains)
    assert "6 query and 0 reference rows" in str(caught[0].message)
    assert found.support.count_query.sum() == 18
    assert (found.place[:24] >= 0).sum() == 18


def test_a_level_of_few_rows_is_not_named():
    """Records and pages travel; a level of three people could be recognised."""
    with pytest.warns(LowOverlapWarning, match=r"\(rare\)") as caught:
        compare(two(["a"] * 9 + ["new"] * 3, ["a"] * 9))
    assert "new" not in str(caught[0].message)


def test_quietly_nothing_is_said_and_nothing_measured():
    domains = two(["a"] * 500 + ["new"] * 300, ["a"] * 500)
    assert np.isnan(compare(domains, quiet=True).overlap.coefficient)
    found = compare(domains, quiet=True, measured=True)
    assert found.overlap.coefficient == pytest.approx(5 / 8, abs=0.005)


def test_the_confounder_to_blame_is_named():
    rng = np.random.default_rng(1)
    ages = rng.uniform(20, 40, 60), rng.uniform(60, 80, 60)
    domains = two(["a", "b"] * 30, ["a", "b"] * 30, ages)
    with pytest.raises(NoOverlapError, match=r"alone: age 0\.0"):
        compare(domains, limits=(0.4, 0.2))
    near = rng.uniform(20, 60, 200), rng.uniform(45, 80, 200)
    with pytest.warns(LowOverlapWarning, match="overlap coefficient") as caught:
        compare(two(["a", "b"] * 100, ["a", "b"] * 100, near), limits=(0.9, 0.05))
    assert "age" in str(caught[0].message)
    assert "group" not in str(caught[0].message)


def test_support_points_of_numbers_sum_to_one_and_lie_in_both_domains():
    rng = np.random.default_rng(2)
    ages = rng.uniform(0, 10, 100), rng.uniform(5, 15, 100)
    found = compare(two(["a"] * 100, ["a"] * 100, ages), quiet=True)
    rows, weights = found.points
    assert weights.sum() == pytest.approx(1)
    age = np.concatenate(ages)[found.used[rows]]
    inside = (age > 5) & (age < 10)
    assert weights[inside].sum() > 0.85
    assert inside.mean() < 0.6
