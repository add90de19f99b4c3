"""The published numbers that need no luck: what was not drawn at random must be the same."""

import json
from pathlib import Path

import numpy as np
import pytest

PUBLISHED = json.loads(
    (Path(__file__).parents[1] / "experiments" / "published_numbers.json").read_text()
)


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
                    PUBLISHED[experiment][setting][known][metric], abs=1e-8
                )


def test_photos_reach_the_published_objective(needs_data):
    import photos
    import published

    pytest.importorskip("PIL", reason="photos need Pillow")
    for scenario, minimum in zip(photos.SCENARIOS, (19.6941, 22.0267, 20.7403)):
        p = photos.draw(scenario)
        data = p.X_query, p.X_reference, p.Z_query, p.Z_reference
        objective = published.affine_objective(*data)
        fitted = published.condo_kl(*data, diagonal=False, max_iter=1000)
        value = objective.value(np.append(fitted.A.ravel(), fitted.b)) + objective.constant
        assert value == pytest.approx(minimum, abs=2e-4)
        known = PUBLISHED["image_color"][scenario]["ConDo Gaussian KLD"]["objective"]
        assert value < known


def test_snareseq_silhouettes_of_minibatches_are_near_the_published(needs_data):
    import snareseq

    atac, rna, types = snareseq.cells()
    names = snareseq.SILHOUETTES[snareseq.FULL]
    for method, known in PUBLISHED["snareseq"][snareseq.FULL].items():
        fitted = snareseq.fits()[method](atac, rna, (types, types), None)
        found = snareseq.silhouettes(fitted, names)
        assert found == pytest.approx(known, abs=0.005)
    train, paired, unseen = snareseq.draw(20, 0)
    assert (len(train), len(paired), len(unseen)) == (500, 20, 527)
    assert len(np.unique(np.concatenate([train, paired, unseen]))) == 1047
