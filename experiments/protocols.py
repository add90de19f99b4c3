"""Our own test problems, and the paper's data sets as the tests like to draw them."""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from methods import TwoDomains
from methods import rmse as rmse
from scipy.stats import ortho_group

from condokit.datasets import EFFECTS as EFFECTS
from condokit.datasets import (
    SCENARIOS,
    load_ansur,
    load_bladderbatch,
    make_categorical1d,
    make_categorical2d,
    make_continuous1d,
)
from condokit.datasets.synthetic import curve


@dataclass(frozen=True)
class Pair(TwoDomains):
    """Two domains, their confounder, and what the query rows would be without the shift."""

    truth: np.ndarray


@dataclass(frozen=True)
class Heldout(Pair):
    """A pair with heldout query rows, observed and true."""

    X_heldout: np.ndarray
    truth_heldout: np.ndarray


def data_folder():
    """Return the folder of the real data sets, or None."""
    folder = os.environ.get("CONDOKIT_DATA")
    return Path(folder) if folder and Path(folder).is_dir() else None


def categorical1d(n, seed):
    """Draw one feature, two classes, n rows in each domain; observed query = 2 x + 5."""
    return make_categorical1d(n, random_state=seed)


def continuous1d(effect, seed, **options):
    """Draw one feature and a continuous confounder; see `make_continuous1d`."""
    return make_continuous1d(effect, random_state=seed, **options)


def categorical2d(seed):
    """Draw rings in the plane, one raised by 2 ("up"), in the order of the three scenarios."""
    rng = np.random.RandomState(seed)
    return {name: make_categorical2d(name, random_state=rng) for name in SCENARIOS}


@cache
def measurements():
    """Return ANSUR II, read once."""
    return load_ansur()


def people(gender_shift, rng):
    """Draw people of ANSUR II in the paper's order.

    Returns their standardised measurements, whether they are men, which of them are the query and
    the reference (by number among the thousand), all their rows in the file, and the means and
    standard deviations.
    """
    data = measurements()
    is_man = data.gender == "Male"
    rows = np.concatenate(
        [rng.choice(np.flatnonzero(is_man == sex), 500, replace=False) for sex in (True, False)]
    )
    X = data.X[rows]
    middle, spread = X.mean(axis=0), X.std(axis=0)
    man, woman = np.arange(500), np.arange(500, 1000)
    rng.shuffle(man)
    rng.shuffle(woman)
    k = 375 if gender_shift else 250
    reference = np.concatenate([man[:k], woman[: 500 - k]])
    query = np.concatenate([man[k:], woman[500 - k :]])
    rng.shuffle(reference)
    rng.shuffle(query)
    return (X - middle) / spread, is_man[rows], query, reference, rows, middle, spread


def ansur(seed, *, n=500, shift="large", people_shift=True):
    """Draw ANSUR II: 93 measurements, gender as the confounder, the map from target to source.

    `shift` is "large" (the paper's location-scale: scales and offsets U[.5, 2]), "affine" (the
    paper's: a rotation, scales U[.5, 2], a rotation), None, or (r, s): scales within r of one and
    offsets within s standard deviations. `n` people per domain; fewer than 500 are a subsample in
    which both genders occur in both domains.
    """
    rng = np.random.RandomState(seed)
    X, is_man, query, reference = people(people_shift, rng)[:4]
    gender = np.where(is_man, "man", "woman")
    if shift == "affine":
        left = ortho_group.rvs(93, random_state=rng)
        mix = left * rng.uniform(0.5, 2, 93) @ ortho_group.rvs(93, random_state=rng)
        return Pair(X[query] @ mix, X[reference], gender[query], gender[reference], X[query])
    scale, offset = np.ones(93), np.zeros(93)
    if shift == "large":
        scale, offset = rng.uniform(0.5, 2, 93), rng.uniform(0.5, 2, 93)
    elif shift is not None:
        scale = 1 + rng.uniform(-shift[0], shift[0], 93)
        offset = rng.uniform(-shift[1], shift[1], 93)
    if n < 500:
        query, reference = (_subsample(rows, gender, n, rng) for rows in (query, reference))
    truth = X[query]
    return Pair(truth * scale + offset, X[reference], gender[query], gender[reference], truth)


def _subsample(rows, gender, n, rng):
    while True:
        chosen = rng.choice(rows, n, replace=False)
        if len(set(gender[chosen])) == 2:
            return chosen


@cache
def _bladder():
    return load_bladderbatch()


def bladderbatch(seed=None):
    """Return (X, result, batch) of batches 2 and 5; with a seed, without 7 cancers of batch 2."""
    data = _bladder()
    keep = np.isin(data.batch, [2, 5])
    X, result, batch = data.X[keep], data.result[keep], data.batch[keep]
    if seed is not None:
        cancer = np.flatnonzero((batch == 2) & (result == "Cancer"))
        dropped = np.random.RandomState(seed).choice(cancer, 7, replace=False)
        X, result, batch = (np.delete(a, dropped, axis=0) for a in (X, result, batch))
    return X, result, batch


def mixed(seed):
    """Draw a continuous and a categorical confounder: a line and a spread for each class."""
    rng = np.random.RandomState(seed)

    def draw(n, low, shares):
        z, c = rng.uniform(low, 8, n), rng.choice(3, n, p=shares)
        x = np.array([1, 3, 5])[c] * z + np.array([0, 8, -4])[c]
        x = x + rng.normal(size=n) * np.array([1, 2, 1.5])[c]
        return x[:, None], {"z": z, "class": np.array(["a", "b", "c"])[c]}

    truth, Z_query = draw(120, 4, [0.6, 0.3, 0.1])
    X_reference, Z_reference = draw(200, 0, [0.2, 0.3, 0.5])
    heldout, _ = draw(200, 0, [0.2, 0.3, 0.5])
    return Heldout(
        2 * truth + 5, X_reference, Z_query, Z_reference, truth, 2 * heldout + 5, heldout
    )


def rotations(n_features, n_strata, n, seed, *, skewed=False):
    """Draw Gaussian strata whose query was rotated, scaled, rotated and moved; det A > 0.

    `n` rows per stratum on average; shares grow from 1 to 3 in the query and fall in the reference.
    """
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=(n_strata, n_features))
    factors = rng.normal(size=(n_strata, n_features, min(n_features, 3)))
    noise = rng.uniform(0.1, 0.5, (n_strata, n_features))
    covariance = factors @ factors.transpose(0, 2, 1) + noise[:, :, None] * np.eye(n_features)
    root = np.linalg.cholesky(covariance)
    shares = np.linspace(1, 3, n_strata) / np.linspace(1, 3, n_strata).sum()

    def draw(p):
        z = rng.choice(n_strata, n * n_strata, p=p)
        size = (len(z), n_features)
        white = rng.exponential(size=size) - 1 if skewed else rng.normal(size=size)
        return mean[z] + np.einsum("nij,nj->ni", root[z], white), np.array([f"z{k}" for k in z])

    truth, Z_query = draw(shares)
    X_reference, Z_reference = draw(shares[::-1])
    left, right = (ortho_group.rvs(n_features, random_state=rng) for _ in range(2))
    A = left * rng.uniform(0.5, 2, n_features) @ right
    if np.linalg.det(A) < 0:
        A[:, 0] *= -1
    X_query = truth @ A.T + rng.normal(size=n_features)
    return Pair(X_query, X_reference, Z_query, Z_reference, truth)


def subjects(effect, seed, n, *, rows_each=1, correlation=0.0, n_features=30):
    """Draw n subjects in each domain, with one confounder value and correlated noise each.

    Returns X and z of query and reference, and the subjects of their rows; observed query =
    2 x + 5.
    """
    rng = np.random.default_rng(seed)
    out = []
    for low in (4, 0):
        z = rng.uniform(low, 8, n).repeat(rows_each)
        shared = rng.normal(size=(n, n_features)).repeat(rows_each, axis=0)
        own = rng.normal(size=(n * rows_each, n_features))
        noise = np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * own
        mean, sd = curve(effect, z)
        out.append((mean[:, None] + sd[:, None] * noise, z))
    (truth, z_query), (X_reference, z_reference) = out
    who = np.arange(n).repeat(rows_each)
    return 2 * truth + 5, X_reference, z_query, z_reference, (who, who + n)
