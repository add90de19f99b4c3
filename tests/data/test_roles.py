import numpy as np
import pytest

from condokit import ConDoAdapter, assess


class TestMissing:
    def frame(self):
        import pandas as pd

        rng = np.random.default_rng(0)
        frame = pd.DataFrame({"age": rng.normal(size=300), "sex": rng.choice(["F", "M"], 300)})
        frame["x"] = frame["age"] + (frame["sex"] == "F") + 0.3 * rng.normal(size=300)
        frame["device"] = np.repeat(["query", "reference"], 150)
        frame.loc[:149, "x"] = 2 * frame.loc[:149, "x"] + 1
        frame.loc[::10, "age"] = np.nan
        frame.loc[5::50, "sex"] = None
        return frame

    def test_dropping_is_leaving_the_rows_out(self):
        frame = self.frame()
        how = {"domain": "device", "confounders": ["age", "sex"]}
        with pytest.raises(ValueError, match="'age' has 30 missing values .of 300"):
            ConDoAdapter().fit(frame, **how)
        dropped = ConDoAdapter(missing="drop").fit(frame, **how)
        by_hand = ConDoAdapter().fit(frame.dropna(), **how)
        np.testing.assert_allclose(dropped.map_.scale, by_hand.map_.scale, rtol=1e-9)
        assert dropped.report_["missing_confounders"] == {"age": 30, "sex": 6}
        assert dropped.support_.count_query.sum() == by_hand.support_.count_query.sum()

    def test_dropping_with_categories_alone(self):
        frame = self.frame().drop(columns="age")
        frame.loc[frame["sex"].isna(), "x"] = 1e3  # must not reach any stratum
        how = {"domain": "device", "confounders": "sex"}
        dropped = ConDoAdapter(missing="drop").fit(frame, **how)
        by_hand = ConDoAdapter().fit(frame.dropna(), **how)
        np.testing.assert_allclose(dropped.map_.scale, by_hand.map_.scale, rtol=1e-9)

    def test_imputing_keeps_all_rows(self):
        adapter = ConDoAdapter(missing="impute").fit(
            self.frame(), domain="device", confounders=["age", "sex"]
        )
        assert adapter.support_.count_query.sum() == 150
        assert adapter.map_.scale[0] == pytest.approx(0.5, abs=0.1)


def test_a_confounder_that_may_be_a_code_is_told():
    rng = np.random.default_rng(0)
    X, domain = rng.normal(size=(90, 2)), np.repeat(["query", "reference"], 45)
    stage = rng.integers(1, 5, 90)
    with pytest.warns(UserWarning, match="confounder 'stage' has few .*`categorical`") as caught:
        first = ConDoAdapter().fit(X, domain=domain, confounders={"stage": stage})
    assert caught[0].message.args[0].code == "few-levels"
    assert "confounder 'stage' has few distinct whole numbers" in str(
        first.map_.provenance["warnings"]
    )
    assert assess(X, domain=domain, confounders={"stage": stage}).verdict == "go"
    as_float = {"stage": stage.astype(float)}
    second = ConDoAdapter().fit(X, domain=domain, confounders=as_float)
    np.testing.assert_array_equal(first.map_.offset, second.map_.offset)
    ConDoAdapter(categorical=["stage"]).fit(X, domain=domain, confounders={"stage": stage})
    many = {"age": rng.integers(20, 80, 90)}
    ConDoAdapter().fit(X, domain=domain, confounders=many)


def test_more_than_two_labels_can_be_picked_from():
    X = np.random.default_rng(0).normal(size=(30, 2))
    with pytest.raises(
        ValueError, match=r"Got 3 .*compare two of them, fit on the rows of two labels"
    ):
        ConDoAdapter(reference="a").fit(X, domain=list("abc") * 10)
