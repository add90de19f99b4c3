import numpy as np
import pytest

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


def test_the_demo_runs(tmp_path, capsys):
    import runpy
    import sys
    from pathlib import Path

    from condokit import AffineMap

    script = Path(__file__).parents[1] / "examples" / "demo.py"
    argv, sys.argv = sys.argv, [str(script), str(tmp_path)]
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv = argv
    text = capsys.readouterr().out
    assert "condokit" in text
    assert AffineMap.load(tmp_path / "v2_to_v1.json").n_features_in_ == 16
    assert len((tmp_path / "adapted.csv").read_text().splitlines()) == 901
