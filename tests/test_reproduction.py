"""The paper's experiments: generators against published numbers, runner, written results."""

import importlib
import json

import ansur
import california
import numpy as np
import pandas as pd
import published
import pytest
import results
import run
from methods import fit_all, methods, parameter_errors, rmse
from problems import papers_affine_objective
from scipy.optimize import check_grad

from condokit import AffineMap
from condokit.datasets import make_continuous1d

EXPERIMENTS = [
    name for name in (*run.SYNTHETIC, *run.REAL) if (run.RESULTS / f"{name}.csv").exists()
]


@pytest.mark.parametrize("name", ["continuous1d", "irrelevant", "split", "categorical2d"])
def test_generators_give_the_published_errors_without_and_with_transport(name):
    experiment = importlib.import_module(name)
    diagonal = name != "categorical2d"
    for scenario in experiment.SCENARIOS:
        key = experiment.published_key(scenario)
        if key is None:
            continue
        found = {"Before Correction": [], "Gaussian OT": []}
        for seed in run.SEEDS:
            p = experiment.draw(scenario, seed)
            transport = published.gaussian_ot(p.X_query, p.X_reference, diagonal)
            for method, adapt in (("Before Correction", np.asarray), ("Gaussian OT", transport)):
                found[method].append(
                    [rmse(adapt(p.X_query), p.truth), rmse(adapt(p.X_heldout), p.truth_heldout)]
                )
        digits = 3 if diagonal else 2
        for method, errors in found.items():
            expected = published.NUMBERS[key[0]][key[1]][method]
            np.testing.assert_allclose(
                np.mean(errors, axis=0),
                [expected["train_rmse"], expected["test_rmse"]],
                atol=0.51 * 10**-digits,
                err_msg=f"{scenario}, {method}",
            )


def test_the_published_slip_explains_the_published_categorical1d():
    import categorical1d

    for scenario in categorical1d.SCENARIOS:
        errors = []
        for seed in run.SEEDS:
            p = categorical1d.draw(scenario, seed)
            fitted = published.condo_kl(p.X_query, p.X_reference, p.Z_query, p.Z_reference, True)
            errors.append(rmse(fitted(p.X_query), p.truth))
        expected = published.NUMBERS["categorical1d"][scenario]["ConDo Gaussian KLD"]
        assert np.mean(errors) == pytest.approx(expected["rmse"], abs=1e-4)
        assert np.std(errors) == pytest.approx(expected["rmse_std"], abs=1e-4)


def test_derivatives_of_the_published_objective():
    rng = np.random.default_rng(0)
    roots = rng.normal(size=(2, 3, 4, 4))
    cov_q, cov_r = (
        roots[0] @ roots[0].swapaxes(1, 2),
        roots[1] @ roots[1].swapaxes(1, 2) + np.eye(4),
    )
    mean_q, mean_r = rng.normal(size=(2, 3, 4))
    objective = papers_affine_objective(np.array([0.2, 0.3, 0.5]), mean_q, cov_q, mean_r, cov_r)
    x, v = rng.normal(size=(2, 20))
    value, gradient = (lambda x, k=k: objective.of_numbers(x)[k] for k in (0, 1))
    assert check_grad(value, gradient, x) < 1e-4
    step = 1e-6 * v
    slope = (gradient(x + step) - gradient(x - step)) / 2e-6
    np.testing.assert_allclose(objective.hessian_product(x, v), slope, rtol=1e-4, atol=1e-4)


def test_transport_matches_means_and_covariances():
    rng = np.random.default_rng(1)
    X, Y = rng.normal(size=(50, 3)), rng.normal(size=(60, 3)) @ rng.normal(size=(3, 3)) + 1
    moved = published.gaussian_ot(X, Y, diagonal=False)(X)
    np.testing.assert_allclose(moved.mean(axis=0), Y.mean(axis=0))
    np.testing.assert_allclose(np.cov(moved.T), np.cov(Y.T), atol=1e-6)
    moved = published.gaussian_ot(X, Y, diagonal=True)(X)
    np.testing.assert_allclose(moved.std(axis=0), Y.std(axis=0), rtol=1e-6)


def test_every_method_finds_a_map_of_the_family():
    problem = make_continuous1d(random_state=0)
    fits = methods(continuous=True, epochs=2)
    found = {name: fitted for name, fitted, _ in fit_all(problem, fits)}
    assert list(found) == list(fits)
    assert all(isinstance(fitted, AffineMap) for fitted in found.values())
    errors = parameter_errors(found["condokit"], problem.A, problem.b)
    assert errors["A_error"] < 0.1


def test_combat_gives_new_rows_a_constant_covariate():
    pytest.importorskip("combatlearn", reason="the extra 'experiments' is not installed")
    problem = make_continuous1d(random_state=0)
    ((_, fitted, _),) = fit_all(problem, {"ComBat": methods(continuous=True)["ComBat"]})
    # the covariates of new rows are not known: their effect stays in, and widens the map's error
    assert 0.3 < fitted.A.item() < 1.0


def test_a_run_is_kept_and_taken_up_again(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "_runs", lambda name, quick: tmp_path)
    table, _ = run.reproduce("categorical1d", quick=True, n_jobs=1, output=tmp_path / "out")
    kept = sorted(tmp_path.glob("*.json"))
    assert len(kept) == 6
    changed = json.loads(kept[0].read_text())
    changed["rows"][0]["rmse"] = 123.0
    kept[0].write_text(json.dumps(changed))
    kept[1].unlink()
    again, _ = run.reproduce("categorical1d", quick=True, n_jobs=1, output=tmp_path / "out")
    assert (again["rmse"] == 123.0).sum() == 1  # the finished job was not run again
    assert len(again) == len(table)
    assert sorted(tmp_path.glob("*.json")) == kept  # the lost one was


@pytest.mark.parametrize("name", [*run.SYNTHETIC, *run.REAL])
def test_every_experiment_runs(name, tmp_path, request, monkeypatch):
    if name in run.REAL:
        request.getfixturevalue("needs_data")
    experiment = importlib.import_module(name)
    monkeypatch.setattr(california, "ROWS_IF_QUICK", 200)
    scenario = experiment.QUICK[-1]  # the quickest
    rows = run.work(name, scenario, 0, True, tmp_path)["rows"]
    assert {"none", *results.OURS[:1]} <= {row["method"] for row in rows}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_committed_claims_are_what_the_committed_tables_say(name):
    experiment = importlib.import_module(name)
    table = pd.read_csv(run.RESULTS / f"{name}.csv")
    written = (run.RESULTS / "RESULTS.md").read_text(encoding="utf-8")
    assert set(experiment.SCENARIOS) == set(table["scenario"])
    for sentence, check in experiment.CLAIMS:
        holds, evidence = check(table)
        assert f"| {sentence} | {'yes' if holds else '**no**'} | {evidence} |" in written


def test_results_are_written_from_the_tables(tmp_path):
    table = pd.DataFrame(
        {
            "scenario": ["N=10"] * 4,
            "seed": [0, 1, 0, 1],
            "method": ["Gaussian OT", "Gaussian OT", "condokit auto", "condokit auto"],
            "rmse": [2.0, 3.0, 0.5, 0.7],
        }
    )
    import categorical1d

    compared = results.compare(categorical1d, table)
    assert list(compared["verdict"]) == ["better"]
    assert compared.loc[0, "published"] == pytest.approx(1.0404)
    worse = table.assign(rmse=[2.0, 3.0, 5.0, 5.2])
    assert list(results.compare(categorical1d, worse)["verdict"]) == ["worse"]
    text = results._metric_table(categorical1d, table, "rmse", "rmse")
    assert "| N=10 | 2.614 \\| 2.500 ± 0.354 | 0.600 ± 0.071 |" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", run.SYNTHETIC)
def test_the_paper_s_claims_again(name, tmp_path):
    """Run the whole protocol: every claim comes out as in the committed results."""
    experiment = importlib.import_module(name)
    before = pd.read_csv(run.RESULTS / f"{name}.csv")
    table, _ = run.reproduce(name, output=tmp_path)
    for sentence, check in experiment.CLAIMS:
        assert check(table)[0] == check(before)[0], sentence
    ours = ["condokit", "condokit auto", "Gaussian OT", "none"]
    metric = next(iter(experiment.METRICS))
    for method in ours:
        new, old = (
            t[(t["method"] == method) & (t["seed"] < 100)].groupby("scenario")[metric].mean()
            for t in (table, before)
        )
        np.testing.assert_allclose(new[old.index], old, rtol=0.02, atol=0.005, err_msg=method)


def test_bladderbatch_gives_the_published_silhouettes(needs_data):
    import bladderbatch
    from methods import methods

    same = {
        "none": "No Adaptation",
        "Gaussian OT": "Gaussian OT",
        "ConDo KL (as published)": "ConDo Gaussian KLD",
    }
    fits = methods()
    for scenario, seeds in ((bladderbatch.ALL, [0]), (bladderbatch.REMOVED, range(10))):
        experiment, setting = bladderbatch.published_key(scenario)
        problems = [bladderbatch.draw(scenario, seed) for seed in seeds]
        for name, known in same.items():
            found = [bladderbatch.silhouettes(p, fits[name](p)) for p in problems]
            for metric in ("sil_cancer", "sil_batch"):
                mean = np.mean([scores[metric] for scores in found])
                assert mean == pytest.approx(
                    published.NUMBERS[experiment][setting][known][metric], abs=1e-8
                )


def test_photos_reach_the_published_objective(needs_data):
    import photos
    import published

    pytest.importorskip("PIL", reason="photos need Pillow")
    for scenario, minimum in zip(photos.SCENARIOS, (19.6941, 22.0267, 20.7403)):
        p = photos.draw(scenario)
        data = p.X_query, p.X_reference, p.Z_query, p.Z_reference
        objective = published.affine_objective(p)
        fitted = published.condo_kl(*data, diagonal=False, max_iter=1000)
        value = objective.of_numbers(np.append(fitted.A.ravel(), fitted.b))[0]
        assert value == pytest.approx(minimum, abs=2e-4)
        known = published.NUMBERS["image_color"][scenario]["ConDo Gaussian KLD"]["objective"]
        assert value < known


def test_snareseq_silhouettes_of_minibatches_are_near_the_published(needs_data):
    import snareseq

    atac, rna, types = snareseq.cells()
    names = snareseq.SILHOUETTES[snareseq.FULL]
    for method, known in published.NUMBERS["snareseq"][snareseq.FULL].items():
        fitted = snareseq.fits()[method](atac, rna, (types, types), None)
        found = snareseq.silhouettes(fitted, names)
        assert found == pytest.approx(known, abs=0.005)
    train, paired, unseen = snareseq.draw(20, 0)
    assert (len(train), len(paired), len(unseen)) == (500, 20, 527)
    assert len(np.unique(np.concatenate([train, paired, unseen]))) == 1047


@pytest.mark.parametrize("scenario", ansur.SCENARIOS[:8])
def test_ansur_draws_the_published_problems(scenario, needs_data):
    family, *shifts = ansur.parts(scenario)
    found = []
    for seed in range(10):
        problem = ansur.draw(family, *shifts, seed)
        ot = published.gaussian_ot(problem.X_query, problem.X_reference, family == "location-scale")
        found.append([ansur.rmse(X, problem.truth) for X in (problem.X_query, ot(problem.X_query))])
    experiment, setting = ansur.published_key(scenario)
    rows = published.NUMBERS[experiment][setting]
    for name, values in zip(("Target (post-feature shift)", "Gaussian OT"), np.transpose(found)):
        np.testing.assert_allclose(values.mean(), rows[name]["rmse"], rtol=1e-8)
        np.testing.assert_allclose(values.std(), rows[name]["rmse_std"], rtol=1e-7)


def test_ansur_knows_its_true_map_and_turns_determinants(needs_data):
    signs = []
    for family in ("affine", ansur.POSITIVE):
        problem = ansur.draw(family, True, True, 0)
        mapped = problem.X_heldout @ problem.A.T + problem.b
        np.testing.assert_allclose(mapped, problem.truth_heldout, atol=1e-10)
        signs.append(np.linalg.slogdet(problem.A)[0])
    assert signs == [-1, 1]


def test_california_has_the_published_domains(needs_data):
    _, is_high, is_poor = california.districts()
    assert is_poor.sum() == 10_320
    assert round(is_high[is_poor].mean(), 3) == 0.258
    train, poor, rich = california.draw(0)
    assert len(np.unique(np.concatenate([train, poor, rich]))) == 1500
    assert is_poor[poor].all()
    assert not is_poor[rich].any()


@pytest.mark.filterwarnings("ignore::condokit.checks.IdentifiabilityWarning")
def test_california_maps_are_the_same_in_other_units(needs_data):
    X, _, is_poor = california.districts()
    problem = california.Problem.of(X[~is_poor], X[is_poor]).few(300)

    def fit(p):
        return published.gaussian_ot(p.X_query, p.X_reference, diagonal=True)

    np.testing.assert_allclose(
        california._standardised(fit)(problem)(X[:5]), fit(problem)(X[:5]), rtol=1e-4
    )
    np.testing.assert_array_equal(
        california._without_places(fit)(problem)(X[:5])[:, -2:], X[:5, -2:]
    )


def test_arrays_pass_between_processes():
    import io

    import tabpfn_worker

    stream = io.BytesIO()
    tabpfn_worker.send(stream, X=np.eye(2), y=np.array([0, 1]))
    tabpfn_worker.send(stream, labels=np.array([1]))
    stream.seek(0)
    np.testing.assert_array_equal(tabpfn_worker.receive(stream)["X"], np.eye(2))
    np.testing.assert_array_equal(tabpfn_worker.receive(stream)["labels"], [1])
    with pytest.raises(EOFError, match="has ended"):
        tabpfn_worker.receive(stream)


def test_the_paper_s_classifier_runs_in_another_interpreter(tmp_path, monkeypatch):
    import sys

    import classifiers

    assert classifiers.chosen() == {"": "hgb", "_logreg": "logreg"}
    (tmp_path / "torch/nn/modules").mkdir(parents=True)
    for package in ("torch", "torch/nn", "torch/nn/modules", "torch/nn/modules/transformer"):
        path = tmp_path / package
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        path.write_text("def set_num_threads(n): pass\n" if package == "torch" else "")
    (tmp_path / "tabpfn.py").write_text(
        "class TabPFNClassifier:\n"
        "    def __init__(self, device): print('hello')\n"
        "    def fit(self, X, y): self.X, self.y = X, y\n"
        "    def predict(self, X): return self.y[abs(X - self.X.T).argmin(axis=1)]\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("CONDOKIT_TABPFN", sys.executable)
    assert classifiers.chosen() == {"": "tabpfn"}
    model = classifiers.make("tabpfn").fit([[0.0], [1.0]], ["low", "high"])
    assert list(model.predict([[0.2], [0.9], [0.1]])) == ["low", "high", "low"]
    classifiers._worker().kill()
    classifiers._worker.cache_clear()
