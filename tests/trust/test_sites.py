"""A study is told as a pair is: the same figures in table, sentence, report and file."""

import io

import numpy as np
import pandas as pd
import pytest

from condokit import BatchAdapter, ConDoAdapter, evaluate, report

ROLES = {"batch": "site", "confounders": ["age", "sex"], "bridge": "sample"}
FEATURES = [f"f{j}" for j in range(6)]


def scanners(seed=0, sites="ABC", n=60, n_bridges=10):
    """Return people of all sites, ten of whom were measured everywhere, and true values."""
    rng, parts, truths = np.random.default_rng(seed), [], []
    d = len(FEATURES)
    same = rng.normal(size=(n_bridges, d)), rng.uniform(20, 80, n_bridges)
    for k, site in enumerate(sites):
        own = rng.normal(size=(n, d)), rng.normal(45 + 5 * k, 12, n)
        age = np.concatenate([own[1], same[1]])
        z = np.concatenate([own[0], same[0] + 0.2 * rng.normal(size=same[0].shape)])
        truth = z - 0.03 * (age - 50)[:, None]
        shift = 0.8 * rng.normal(size=d) * (k > 0)
        part = pd.DataFrame(truth * (1 + 0.2 * (k > 0)) + shift, columns=FEATURES)
        names = [None] * n + [f"T{i}" for i in range(n_bridges)]
        sex = np.resize(["F", "M", "M", "F", "F"], len(part))
        parts.append(part.assign(site=site, age=age, sex=sex, sample=names))
        truths.append(truth)
    return pd.concat(parts, ignore_index=True), np.concatenate(truths)


@pytest.fixture(scope="module")
def study():
    table, truth = scanners()
    adapter = BatchAdapter(reference="A").fit(table, features=FEATURES, **ROLES)
    return table, truth, adapter, evaluate(adapter, table, n_permutations=39)


def test_one_number_in_all_places(study):
    table, truth, adapter, found = study
    record = report_of(adapter, table)
    for row in found.batches.rows():
        one, facts = found.evaluations[row["batch"]], adapter.report_.batches[row["batch"]]
        shown = next(b for b in record["batches"] if b["batch"] == row["batch"])
        for when in ("before", "after"):
            number = row[f"error_{when}"]
            assert number == getattr(one, f"error_{when}")
            assert number == pytest.approx(getattr(facts, f"error_{when}"), abs=1e-4)
            assert shown[f"error_{when}"] == pytest.approx(number, rel=1e-3)
            assert f"{number:.2f} sd" in one.sentence
            square = np.mean(np.square(one.features[f"error_{when}"]))
            assert np.sqrt(square) == pytest.approx(number, rel=1e-9)
        assert shown["overlap"] == facts.overlap
        assert (row["verdict"], row["rows"]) == (one.verdict, facts.rows)
        here = (table["site"] == row["batch"]).to_numpy()
        mapped = adapter.transform(table, batch="site").to_numpy()[here]
        actual = np.sqrt(np.mean((mapped - truth[here]) ** 2))
        assert row["after_low"] < actual < 1.3 * row["after_high"]
    assert f"intervals up to {max(found.batches['after_high']):.2f} sd" in found.errors


def report_of(adapter, table):
    return report.build(adapter, adapter.read_as_fitted(table, *[None] * 5))


def test_bridges_are_left_out_in_turn(study):
    *_, found = study
    agreement = found.evaluations["B"].agreement
    assert agreement.n_pairs == 10
    assert agreement.mapped_by == "left out"
    assert agreement.error_after < agreement.error_before
    assert "each left out" in found.evaluations["B"].sentence
    assert all(after > 0.5 for after in agreement.features["icc_after"])
    middle = [np.median(agreement.features[f"ccc_{when}"]) for when in ("before", "after")]
    assert agreement.concordance().startswith(f"Median of {len(FEATURES)} features: ICC(A,1) ")
    expected = f"Lin's CCC {middle[0]:.2f} before and {middle[1]:.2f} after the map."
    assert agreement.concordance().endswith(expected)
    icc = agreement.features["icc_after"][0]
    assert f"{icc:.2f} after the map, Lin's" in agreement.concordance(FEATURES[0])


def test_roles_are_remembered(study):
    table, _, adapter, found = study
    again = evaluate(adapter, table, n_permutations=39, **ROLES)
    assert again.to_dict() == found.to_dict()
    values = BatchAdapter(reference="A").fit(
        table[FEATURES], batch=table["site"], confounders=table[["age"]]
    )
    with pytest.raises(ValueError, match="were given to fit as values"):
        evaluate(values, table[FEATURES], n_permutations=39)


def test_two_tables_are_evaluated_as_one(study):
    table = study[0].drop(columns="sample")
    new, old = (table[table["site"] == site] for site in "BA")
    roles = {"confounders": ["age", "sex"], "features": FEATURES}
    adapter = ConDoAdapter().fit_pair(new, old, **roles)
    found = evaluate(adapter, new, old, n_permutations=39)
    assert found.map_known_from == "these rows"
    both = ConDoAdapter(reference="A").fit(pd.concat([new, old]), domain="site", **roles)
    other = evaluate(both, pd.concat([new, old]), n_permutations=39)
    assert found.error_after == pytest.approx(other.error_after)
    assert found.features["verdict"] == other.features["verdict"]
    with pytest.raises(ValueError, match="not both"):
        evaluate(adapter, new, old, domain="site")
    with pytest.raises(ValueError, match="stack them"):
        evaluate(study[2], new, old)


def test_other_rows_are_fitted_again_and_said_to_be_others(study):
    *_, adapter, found = study
    table, truth = scanners(n=150)
    later = evaluate(adapter, table, n_permutations=39)
    one = later.evaluations["B"]
    assert one.map_known_from == "other rows"
    assert any("other rows" in finding.text for finding in one.findings)
    here = (table["site"] == "B").to_numpy()
    mapped = adapter.maps_["B"](table[FEATURES].to_numpy()[here])
    actual = np.sqrt(np.mean((mapped - truth[here]) ** 2))
    low, high = one.error_after_interval
    assert 0.7 * low < actual < 1.3 * high


def test_models_and_pairs_of_a_study(study):
    from sklearn.linear_model import LinearRegression

    table, _, adapter, _ = study
    old = table[table["site"] == "A"]
    model = LinearRegression().fit(old[FEATURES], old["age"])
    places = np.arange(10)
    where = np.flatnonzero(table["sample"].notna())
    pairs = where[10 + places], where[places]
    asked = {"models": model, "labels": "age", "pairs": pairs, "n_permutations": 39}
    found = evaluate(adapter, table, **asked)
    of_b, of_c = found.evaluations["B"], found.evaluations["C"]
    assert of_b.agreement.n_pairs == 10
    assert of_b.agreement.mapped_by == "this map"
    assert of_c.agreement is None
    sheet = of_b.models
    assert sheet["error_after"][0] < sheet["error_before"][0]


def test_what_is_told_after_a_batch_was_added(study):
    table = scanners(sites="ABCD")[0]
    adapter = BatchAdapter(reference="A").fit(
        table[table["site"] != "D"], features=FEATURES, **ROLES
    )
    adapter.add_batch(table[table["site"].isin(["A", "D"])], **ROLES)
    found = evaluate(adapter, table, n_permutations=39)
    facts = adapter.report_.batches["D"]
    assert found.evaluations["D"].error_after == pytest.approx(facts.error_after, abs=1e-4)
    text = report.render(report_of(adapter, table))
    assert "for all batches but D together" in text
    assert "The map of D was added later" in text
    assert "10 samples that were measured in several batches (bridges) took part" in text
    adapter.save(file := io.BytesIO())
    file.seek(0)
    loaded = BatchAdapter.load(file)
    assert str(loaded.report_) == str(adapter.report_)
    assert [one["label"] for one in loaded.provenance_["additions"]] == ["D"]


def test_tables_of_all_sites(study):
    *_, adapter, found = study
    assert len(found.features) == 2 * len(FEATURES)
    assert found.features["batch"] == ["B"] * 6 + ["C"] * 6
    assert set(found.leave_alone) == {"B", "C"}
    limits = {"f0": 5.0}
    again = evaluate(adapter, study[0], n_permutations=39, tolerance=limits)
    assert again.tolerances["within"] == ["yes", "yes"]
    assert "Within limits" in repr(again)


def test_shares_of_variance_are_those_of_regressions(study):
    from sklearn.linear_model import LinearRegression

    table, _, _, found = study
    z = (table["age"] - table["age"].mean()).to_numpy()
    site = pd.get_dummies(table["site"]).to_numpy(dtype=float)
    rest = np.column_stack([z, z**2, z**3, table["sex"] == "M"])
    X = table[FEATURES].to_numpy()

    def left(columns):
        return ((X - LinearRegression().fit(columns, X).predict(columns)) ** 2).sum(axis=0)

    total = ((X - X.mean(axis=0)) ** 2).sum(axis=0)
    share = (left(rest) - left(np.column_stack([rest, site]))) / total
    row = next(iter(found.pictures.shares.rows()))
    assert (row["data"], row["term"]) == ("before", "site")
    assert row["median"] == pytest.approx(np.median(share), rel=1e-6)
    after = [r for r in found.pictures.shares.rows() if r["data"] == "after"]
    assert after[0]["median"] < 0.2 * row["median"]


def test_bridges_alone_are_enough(study):
    table, truth, *_ = study
    alone = table.assign(f0=table["f0"] + 2.0 * (table["site"] == "B") * table["sample"].isna())
    roles = {"batch": "site", "bridge": "sample", "features": FEATURES}
    adapter = BatchAdapter(reference="A").fit(alone, **roles)
    found = evaluate(adapter, alone, n_permutations=39)
    # people of B who are no bridges differ: no doubt, and nothing that the map should remove
    assert dict(zip(found.batches["batch"], found.batches["doubts"])) == {"B": "", "C": ""}
    assert found.verdict == "better"
    few = alone[alone["sample"].isna() | alone["sample"].isin(["T0", "T1", "T2", "T3"])]
    some = BatchAdapter(reference="A").fit(few, **roles)
    doubts = evaluate(some, few, n_permutations=39).batches["doubts"]
    assert all("fewer than 5 bridges" in doubt for doubt in doubts)


def test_lazy_tables_have_names(study):
    pl = pytest.importorskip("polars")
    lazy = pl.from_pandas(study[0].drop(columns="sample")).lazy()
    roles = {"batch": "site", "confounders": ["age", "sex"], "features": FEATURES}
    adapter = BatchAdapter(reference="A").fit(lazy, **roles)
    found = evaluate(adapter, lazy, n_permutations=39)
    assert found.evaluations["B"].features["feature"] == FEATURES
    assert found.pictures is not None


def test_a_report_of_maps_without_known_errors(study, monkeypatch):
    table = study[0].drop(columns="sample")
    inside = ConDoAdapter("affine", divergence="ot")
    adapter = BatchAdapter(inside, reference="A")
    adapter.fit(table, batch="site", confounders=["sex"], features=FEATURES)
    monkeypatch.setattr("condokit.trust.sites.systematic_error", lambda *_: None)
    record = report_of(adapter, table)
    assert "no error of the map is known" in report.render(record)


def test_densities_are_those_of_mapped_rows(study):
    table = study[0].drop(columns=["sample", "age"])
    adapter = BatchAdapter(reference="A").fit(
        table, batch="site", confounders="sex", features=FEATURES
    )
    found = evaluate(adapter, table, n_permutations=39).evaluations["B"]
    mapped = adapter.maps_["B"](table.loc[table["site"] == "B", FEATURES].to_numpy())
    for j, name in enumerate(FEATURES):
        grid = np.array(found.densities[name]["grid"])
        height = np.array(found.densities[name]["strata"]["all"]["after"])
        mean = (grid * height).sum() / height.sum()
        assert mean == pytest.approx(mapped[:, j].mean(), abs=0.15)
