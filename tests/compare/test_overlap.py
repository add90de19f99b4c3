import numpy as np
import pytest

from condokit import ConDoAdapter, LowOverlapWarning, NoOverlapError


class TestOverlap:
    @pytest.mark.parametrize("columns", [1, 32])
    def test_it_is_one_for_equal_and_zero_for_separate_domains(self, columns):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(600, 1))
        Z = rng.normal(size=(600, columns))
        same = ConDoAdapter().fit_pair(X[:300], X[300:], Z[:300], Z[300:]).overlap_
        assert same.coefficient > 0.85
        Z[:300, 0] += 2
        with pytest.warns(LowOverlapWarning, match="0.3|0.2|0.4"):
            apart = ConDoAdapter(warn_overlap=0.6).fit_pair(X[:300], X[300:], Z[:300], Z[300:])
        assert apart.overlap_.coefficient == pytest.approx(0.317, abs=0.1)

    def test_separate_domains_are_refused_and_the_column_named(self):
        rng = np.random.default_rng(0)
        X, age = rng.normal(size=(400, 1)), rng.normal(size=400)
        age[:200] += 12
        dose = rng.normal(size=400)
        Z = {"age": age, "dose": dose}
        halves = [{k: v[half] for k, v in Z.items()} for half in (slice(200), slice(200, None))]
        with pytest.raises(NoOverlapError, match=r"overlap coefficient .*alone: age 0.0"):
            ConDoAdapter().fit_pair(X[:200], X[200:], *halves)
        with pytest.warns(LowOverlapWarning):
            forced = ConDoAdapter(min_overlap=0).fit_pair(X[:200], X[200:], *halves)
        assert forced.overlap_.by_confounder["dose"] > 0.85
        assert forced.overlap_.outside["age"] > 0.95

    def test_categories_use_the_smaller_share(self):
        X = np.random.default_rng(0).normal(size=(20, 1))
        Z_query, Z_reference = np.repeat(["a", "b"], [8, 2]), np.repeat(["a", "b"], [3, 7])
        overlap = ConDoAdapter().fit_pair(X[:10], X[10:], Z_query, Z_reference).overlap_
        assert overlap.coefficient == pytest.approx(0.3 + 0.2)
        assert overlap.to_dict()["by_confounder"] == {"confounder 0": pytest.approx(0.5)}
