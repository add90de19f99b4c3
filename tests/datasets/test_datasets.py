import numpy as np
import pytest

from condokit import datasets
from condokit.datasets import make_eeg


def test_the_truth_is_the_map_of_what_was_recorded(eeg):
    np.testing.assert_allclose(eeg.X_query * eeg.scale + eeg.offset, eeg.truth)
    assert eeg.seizure_query.mean() == pytest.approx(0.6, abs=0.08)
    assert eeg.seizure_reference.mean() == pytest.approx(0.2, abs=0.08)


def test_it_is_reproducible_and_sized():
    one, two = make_eeg(30, 20, random_state=5), make_eeg(30, 20, random_state=5)
    np.testing.assert_array_equal(one.X_query, two.X_query)
    assert (make_eeg(30, 20, random_state=6).X_query != one.X_query).any()
    assert one.X_query.shape == (30, 16)
    assert len(one.columns()["device"]) == 50


ALONE = """
import runpy, sys
class Absent:
    def find_spec(name, *_):
        if name.partition(".")[0] in ("pandas", "polars", "matplotlib", "anndata"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent)
script = sys.argv.pop(1)
runpy.run_path(script, run_name="__main__")
"""


def test_the_demo_runs_with_the_package_alone(tmp_path):
    import subprocess
    import sys
    from pathlib import Path

    from condokit import AffineMap

    script = Path(__file__).parents[2] / "examples" / "demo.py"
    command = [sys.executable, "-c", ALONE, script, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "condokit" in done.stdout
    assert AffineMap.load(tmp_path / "v2_to_v1.json").n_features_in_ == 16
    assert len((tmp_path / "adapted.csv").read_text().splitlines()) == 901


@pytest.mark.parametrize(
    "problem",
    [
        datasets.make_continuous1d("heteroscedastic", scale=3.0, offset=-1.0, random_state=1),
        datasets.make_categorical1d(40, random_state=1),
        datasets.make_categorical2d("random transform", random_state=1),
    ],
    ids=["continuous1d", "categorical1d", "categorical2d"],
)
def test_the_true_map_gives_the_truth(problem):
    for X, truth in (
        (problem.X_query, problem.truth),
        (problem.X_heldout, problem.truth_heldout),
    ):
        np.testing.assert_allclose(X @ problem.A.T + problem.b, truth)


def test_confounders_are_shifted_where_asked():
    shifted, alike = (
        datasets.make_continuous1d(n_query=4000, confounder_shift=shift, random_state=0)
        for shift in (True, False)
    )
    assert shifted.z_query.min() > 4
    assert alike.z_query.mean() == pytest.approx(4, abs=0.15)
    rings = datasets.make_categorical2d(random_state=0)
    assert (rings.Z_query == "up").mean() == 0.25
    assert (rings.Z_reference == "up").mean() == 0.5


def test_split_columns_sum_to_the_confounder_and_irrelevant_ones_follow_it():
    split = datasets.make_continuous1d(n_confounders=5, columns="split", random_state=0)
    assert split.Z_query.shape == (100, 5)
    assert split.Z_query.min() >= 0
    np.testing.assert_allclose(split.Z_query.sum(axis=1), split.z_query)
    among = datasets.make_continuous1d(n_confounders=5, random_state=0)
    np.testing.assert_array_equal(among.Z_reference[:, 0], among.z_reference)
    assert abs(np.corrcoef(among.Z_reference.T)[0, 1:]).max() < 0.3


def test_effects_and_noise_are_as_documented():
    options = {"n_reference": 20000, "n_query": 20000, "scale": 1.0, "offset": 0.0}
    for effect, sd in (("homoscedastic", 2.0), ("heteroscedastic", 7.0), ("nonlinear", 2.0)):
        problem = datasets.make_continuous1d(effect, noise=1.0, random_state=0, **options)
        near = abs(problem.z_reference - 6) < 0.05
        assert problem.X_reference[near].std() == pytest.approx(sd, rel=0.15)
        assert (problem.X_query - problem.truth).std() == pytest.approx(1.0, rel=0.05)
    narrow = datasets.make_continuous1d(sd=1.0, random_state=0, **options)
    near = abs(narrow.z_reference - 6) < 0.05
    assert narrow.X_reference[near].std() == pytest.approx(1.0, rel=0.15)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: datasets.make_continuous1d("cubic"), "'effect' must be 'homoscedastic'"),
        (lambda: datasets.make_continuous1d(columns="other"), "'columns' must be"),
        (lambda: datasets.make_categorical2d("rings"), "'scenario' must be"),
        (lambda: datasets.load_photo("night"), "'name' must be 'day'"),
    ],
)
def test_unknown_names_are_listed(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_missing_file_is_explained(tmp_path, monkeypatch):
    monkeypatch.setenv("CONDOKIT_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(FileNotFoundError, match="rsinghlab/SCOT.*SHA-256") as error:
        datasets.load_snareseq()
    assert str(tmp_path) in str(error.value)
    assert str(tmp_path / "cache" / "condokit") in str(error.value)


def test_another_file_of_the_name_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("CONDOKIT_DATA", str(tmp_path))
    (tmp_path / "snareseq.npz").write_bytes(b"not it")
    with pytest.raises(ValueError, match="is not the file that is meant: its SHA-256 is"):
        datasets.load_snareseq()


def test_the_cache_is_searched_after_the_folder(needs_data, tmp_path, monkeypatch):
    monkeypatch.setenv("CONDOKIT_DATA", str(tmp_path / "empty"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "condokit").mkdir()
    (tmp_path / "condokit" / "snareseq.npz").symlink_to(needs_data / "snareseq.npz")
    assert datasets.load_snareseq().atac.shape == (1047, 19)


def test_real_data_have_the_documented_shapes(needs_data):
    ansur = datasets.load_ansur()
    assert ansur.X.shape == (6068, 93)
    assert (ansur.gender == "Male").sum() == 4082
    bladder = datasets.load_bladderbatch()
    assert bladder.X.shape == (57, 22283)
    assert ((bladder.batch == 2) & (bladder.result == "Cancer")).sum() == 14
    housing = datasets.load_california_housing()
    assert housing.X.shape == (20640, 7)
    assert np.median(housing.income) == pytest.approx(3.5348)
    assert housing.feature_names[-2:] == ["Latitude", "Longitude"]
    snare = datasets.load_snareseq()
    assert sorted(np.unique(snare.cell_type, return_counts=True)[1]) == [143, 201, 324, 379]
    beach = datasets.load_photo("beach")
    assert beach.pixels.shape == (723, 964, 3)
    assert (beach.region == "sand").sum() == 314553
    corn = datasets.load_corn()
    assert {name: X.shape for name, X in corn.spectra.items()} == dict.fromkeys(
        ("m5", "mp5", "mp6"), (80, 700)
    )
    assert corn.wavelengths[[0, -1]].tolist() == [1100, 2498]
    assert corn.chemistry["Moisture"][0] == 10.448
    assert list(corn.chemistry) == ["Moisture", "Oil", "Protein", "Starch"]
