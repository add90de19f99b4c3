"""The benchmark page from few made-up records: aims, exponents, predictions and warnings."""

import page
import pytest
import render

ABOUT = {
    **dict.fromkeys(("date", "processor", "cores", "python", "condokit", "numpy", "scipy"), "?"),
    **{
        "scikit-learn": "?",
        "seconds": 600,
        "runs": ["all"],
        "requirements": {"condo": ["condo==1.1.0"]},
    },
}


def record(method, n, seconds, d=10, **known):
    shares = {"arrays": 0.7, "Python": 0.3}
    made = {"kind": "categorical", "n": n, "d": d, "method": method, "seconds": seconds}
    made |= {"memory": 1e6, "error": 0.1, "copy": 1e-3, "fixed": 0.01, "shares": shares}
    return made | known


@pytest.fixture
def records():
    ours = [record("condokit", n, 1e-6 * n) for n in (10**4, 10**5, 10**6)]
    theirs = [record("condo", 10**4, 0.05), record("condo", 10**5, 4.0)]
    failed = {"kind": "categorical", "n": 10**6, "d": 10, "method": "condo"}
    others = [record("combatlearn", n, 2e-6 * n) for n in (10**4, 10**5)]
    floor = record("StandardScaler", 10**6, 0.9)
    return [*ours, *theirs, {**failed, "not_run": "failed: no luck"}, *others, floor]


def test_exponents_are_slopes_over_the_largest_sizes(records):
    line = render.lines(records, "n")[0]["categorical", "condokit"]
    assert render.exponent(line) == pytest.approx(1)
    assert render.exponent(line[:1]) is None


def test_aims_are_counted_and_exceptions_listed(records):
    text = render.claims(records)
    # 5 and 40 times as fast as condo, twice as fast as combatlearn
    assert "| condo | 2 | 5.0 / 40 / 40 | 1 (50%) | not held |" in text
    assert "| combatlearn | 2 | 2.0 / 2.0 / 2.0 | 2 (100%) | held |" in text
    exceptions = text.split("### Exceptions")[1]
    assert "10,000 x 10 | 5.0" in exceptions
    assert "100,000 x 10" not in exceptions
    assert "combatlearn" not in exceptions


def test_what_limits_a_cell_follows_from_what_was_measured(records):
    floor = render.floors(records)
    assert render.limit(records[0], floor).startswith("fixed cost")
    assert render.limit(records[1], floor).startswith("arithmetic on arrays: fixed 10%, arrays 70%")
    assert render.limit(records[2], floor).startswith("memory bandwidth")
    assert render.limit(record("condokit", 1, 1.0, shares={}), floor) == "not measured"


def test_the_page_tells_why_an_entry_is_missing(records, tmp_path):
    pytest.importorskip("matplotlib")
    render.write([ABOUT, *records], tmp_path)
    text = (tmp_path / "BENCHMARKS.md").read_text()
    assert "condo failed at 1,000,000 x 10: `no luck`" in text
    assert all((tmp_path / "results" / f"{name}.png").exists() for name in ("rows_seconds",))


def test_cells_beyond_the_limits_are_predicted_by_the_exponent_of_the_line():
    square = [record("condo", 10**3, 1.0), record("condo", 10**4, 100.0)]
    assert page.predict(square, 10**5, 10, 600) == "time: 10000 s expected"
    assert page.predict(square[:1], 10**4, 10, 600) is None
    assert page.predict(square[:1], 10**6, 10, 600) == "time: 1000 s expected"
    wide = [record("condo", 10**3, 1e-3, memory=1e9)]
    assert page.predict(wide, 10**4, 10, 600) == "memory: 10 GB expected"
    before = [{**wide[0], "not_run": "time: stopped after 600 s"}]
    assert page.predict(before, 10**4, 10, 600) == "time: as in the cell before"


def test_a_ratio_to_the_floor_that_doubled_is_warned_about(capsys):
    floor = record("StandardScaler", 10**4, 0.001)
    stored = [record("condokit", 10**4, 0.010), floor]
    assert page.compare([record("condokit", 10**4, 0.019), floor], stored) == 0
    assert page.compare([record("condokit", 10**4, 0.021), floor], stored) == 1
    assert "more than twice the stored 10" in capsys.readouterr().out


@pytest.mark.parametrize("kind", page.KINDS)
def test_problems_have_the_truth_that_errors_are_taken_from(kind):
    data = page.problem(kind, 4000, 3)
    truth = (data["Xq"] - data["offset"]) / data["scale"]
    if kind in ("none", "matrix"):
        assert abs(truth.mean(0) - data["Xr"].mean(0)).max() < 0.15
    assert truth.shape == data["Xr"].shape == (2000, 3)
    assert data["Cq"].shape[1] + data["Tq"].shape[1] == {"mixed": 5, "none": 0, "matrix": 0}.get(
        kind, 1
    )
