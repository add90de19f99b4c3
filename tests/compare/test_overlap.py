import numpy as np
import pytest
from problems import points

from condokit import ConDoAdapter, LowOverlapWarning, NoOverlapError
from condokit.compare.overlap import overlap_of_counts, propensity


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

    @pytest.mark.parametrize("columns", [1, 8])
    @pytest.mark.parametrize("n", [50, 200])
    def test_equal_domains_overlap_wholly_however_few_their_rows(self, columns, n):
        rng = np.random.default_rng(0)
        found = []
        for _ in range(10):
            Z, X = rng.normal(size=(2 * n, columns)), rng.normal(size=(2 * n, 1))
            found.append(ConDoAdapter().fit_pair(X[:n], X[n:], Z[:n], Z[n:]).overlap_.coefficient)
        assert np.mean(found) > 0.93

    def test_rows_of_a_subject_are_no_evidence_of_their_own(self):
        rng = np.random.default_rng(0)
        subject = np.repeat(np.arange(60), 10)
        halves, found = (slice(300), slice(300, None)), []
        for _ in range(10):
            age, site = rng.normal(size=60)[subject], rng.choice(list("abcde"), 60)[subject]
            X = rng.normal(size=(600, 1))
            for z in (age, site):
                data = [[values[half] for half in halves] for values in (X, z, subject)]
                adapter = ConDoAdapter().fit_pair(*data[0], *data[1], groups=data[2])
                found.append(adapter.overlap_.coefficient)
        assert np.mean(found[::2]) > 0.9
        assert np.mean(found[1::2]) > 0.95

    def test_strata_beside_a_continuous_confounder(self):
        rng = np.random.default_rng(0)
        found = []
        for shift in (0.0, 0.0, 0.0, 1.0, 1.0, 1.0):
            age = rng.normal(size=800)
            age[:400] += shift
            Z = {"age": age, "batch": rng.integers(0, 200, 800).astype(str)}
            sides = [{k: v[half] for k, v in Z.items()} for half in (slice(400), slice(400, None))]
            X = rng.normal(size=(800, 1))
            with pytest.warns(LowOverlapWarning, match="occur in one domain only"):
                found.append(ConDoAdapter().fit_pair(X[:400], X[400:], *sides).overlap_.coefficient)
        assert np.mean(found[:3]) > 0.95
        assert np.mean(found[3:]) == pytest.approx(0.617, abs=0.05)

    def test_categories_use_the_smaller_share(self):
        X = np.random.default_rng(0).normal(size=(2000, 1))
        Z_query, Z_reference = np.repeat(["a", "b"], [800, 200]), np.repeat(["a", "b"], [300, 700])
        overlap = ConDoAdapter().fit_pair(X[:1000], X[1000:], Z_query, Z_reference).overlap_
        assert overlap.coefficient == pytest.approx(0.3 + 0.2, abs=1e-6)
        assert overlap.to_dict()["by_confounder"] == {"confounder 0": pytest.approx(0.5)}


class TestOverlapOfCounts:
    @pytest.mark.parametrize(
        ("n_strata", "n_rows"), [(3, 20), (50, 2), (50, 20), (200, 2), (1000, 5)]
    )
    @pytest.mark.parametrize("ratio", [1, 5])
    def test_sparse_strata(self, n_strata, n_rows, ratio):
        """Truth of 1 and .5; counted shares alone say .61 to .88 and .34 to .46."""
        rng = np.random.default_rng(0)
        third = n_strata // 3
        one, other = np.ones((2, 3 * third))
        one[:third] = other[-third:] = 0
        equal = np.ones(n_strata)
        for query, reference, truth in ((equal, equal, 1.0), (one, other, 0.5)):
            n = n_rows * n_strata
            found = []
            for _ in range(20):
                counts = np.stack(
                    [
                        rng.multinomial(size, share / share.sum())
                        for size, share in ((n, query), (ratio * n, reference))
                    ]
                )
                found.append(overlap_of_counts(counts)[0])
            assert np.mean(found) == pytest.approx(truth, abs=0.04)

    def test_the_deficit_of_equal_domains_agrees_with_simulation(self):
        # where nothing speaks against e = 1/2, all strata get the deficit of equal shares
        rows = np.random.default_rng(0).binomial(12, 0.5, 100_000)
        deficit = 6 - np.minimum(rows, 12 - rows).mean()
        shared = 6.0 + np.tile([2, -2, 0, 0], 10) * np.array([[1], [-1]])
        counts = np.column_stack([shared, 240 * np.eye(2)])
        plain, added = np.minimum(*shared).sum() / 480, 40 * deficit / 480 * np.sqrt(1 - 12 / 960)
        assert overlap_of_counts(counts)[0] == pytest.approx(plain + added, abs=0.005)

    def test_nothing_in_common_is_zero_and_large_counts_are_exact(self):
        assert overlap_of_counts(np.array([[2, 2, 0, 0], [0, 0, 2, 2]])) == (0.0, 0.0)
        counts = np.array([[5000.0, 3000, 2000, 0], [1000, 4000, 3000, 2000]])
        assert overlap_of_counts(counts)[0] == pytest.approx(0.1 + 0.3 + 0.2, abs=1e-9)

    def test_one_stratum_is_shared_wholly_and_order_does_not_matter(self):
        assert overlap_of_counts(np.array([[2.0], [3.0]]))[0] == 1.0
        counts = np.random.default_rng(0).poisson(2.0, (2, 60)).astype(float)
        turned = overlap_of_counts(counts[:, ::-1])
        assert overlap_of_counts(counts) == pytest.approx(turned, rel=1e-12)
        assert overlap_of_counts(counts[::-1])[0] == pytest.approx(turned[0], rel=1e-9)


def test_the_order_of_rows_does_not_matter():
    rng = np.random.default_rng(0)
    z, is_query = points(np.round(rng.normal(size=(300, 2)), 1)), rng.random(300) < 0.4
    order = rng.permutation(300)
    found = [propensity(z, is_query), propensity(z.take(order), is_query[order])]
    np.testing.assert_allclose(*np.sort(found), rtol=1e-6)  # twins may change places
