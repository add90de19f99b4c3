"""Confounders as numbers: continuous columns in standard units, and the crossed category."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import ndtri

from condokit.checks import Array
from condokit.data.arrays import largest_of
from condokit.data.study import Confounder, Study
from condokit.data.subsets import subsample

_HEAVY_TAILS = 30.0  # fourth moment above which ranks are used; 3 is normal, 9 exponential


@dataclass(frozen=True)
class Covariates:
    """Confounders as numbers: continuous columns in standard units, and the crossed category."""

    Z: Array  # (n_rows, n_continuous), with mean 0 and variance 1 over both domains
    category: Array  # (n_rows,): number of the combination of categorical values
    n_categories: int
    objects: Array | None = None  # (n_rows, ...): confounders as given, for a user's kernel
    weights: Array | None = None  # (n_rows,): how many rows each row stands for; None: one
    groups: Array | None = None  # (n_rows,): the subject of each row

    @property
    def counts(self) -> Array:
        """How many rows each row stands for."""
        return np.ones(len(self.Z)) if self.weights is None else self.weights

    def take(self, rows: Array | slice) -> "Covariates":
        """Return some of the rows."""
        optional = (self.objects, self.weights, self.groups)
        parts = (None if given is None else given[rows] for given in optional)
        return Covariates(self.Z[rows], self.category[rows], self.n_categories, *parts)

    def joined(self, other: "Covariates") -> "Covariates":
        """Return these rows and then others, as points of evaluation without weights."""
        Z = np.concatenate([self.Z, other.Z])
        category = np.concatenate([self.category, other.category])
        objects = None
        if self.objects is not None and other.objects is not None:
            objects = np.concatenate([self.objects, other.objects])
        return Covariates(Z, category, self.n_categories, objects)

    @cached_property
    def order(self) -> Array:
        """The row numbers sorted by value, so that results do not depend on row order."""
        return np.lexsort([*self.Z.T, self.category])

    @cached_property
    def splines(self) -> dict[tuple[bytes, int], Any]:
        """A cache of splines of these rows, by axis and number of knots."""
        return {}

    def thinned(self, most: int, by_weight: bool = True) -> Array:
        """Return the numbers of at most `most` rows, evenly spaced in the order of values."""
        order = self.order if len(self.Z) > most else np.arange(len(self.Z))
        weights = self.weights[order] if by_weight and self.weights is not None else None
        return np.sort(order[subsample(len(order), most, weights)])

    @classmethod
    def of(
        cls, domains: Study, used: Array, category: Array, n_categories: int, as_given: bool
    ) -> "Covariates":
        """Return the confounders of some rows, `as_given` if a user's kernel needs them so."""
        Z, objects = np.empty((len(used), 0)), None
        if as_given:
            objects = objects_of(domains, used)
        elif domains.continuous:
            given = [np.asarray(c.values)[used] for c in domains.continuous]
            Z = np.stack([standard_units(z)(z) for z in given], axis=1)
        weights = None if domains.weights is None else domains.weights[used]
        groups = None if domains.groups is None else domains.groups[used]
        return cls(Z, category, n_categories, objects, weights, groups)


def objects_of(domains: Study, used: Array) -> Array:
    """Return the confounders of some rows as the user gave them: one array, or a column each."""
    given = [c.as_given()[used] for c in domains.confounders]
    return given[0] if len(given) == 1 else np.stack(given, axis=1)


def crossed(study: Study, used: Array) -> Covariates:
    """Return the confounders of some rows as numbers, the categories crossed into one."""
    codes, category = np.unique(study.strata().codes[used], return_inverse=True)
    return Covariates.of(study, used, category, len(codes), False)


def standard_units(z: Array) -> Callable[[Array], Array]:
    """Return a function that standardises z; if tails are heavy, normal scores of its ranks."""
    largest = float(largest_of(z))
    middle, spread = float((z / largest).mean()), float((z / largest).std())
    if spread == 0:
        return np.zeros_like

    def standardised(values: Array) -> Array:
        """Return values with mean 0 and variance 1, without overflow."""
        return (values / largest - middle) / spread

    if np.mean(standardised(z) ** 4) <= _HEAVY_TAILS:
        return standardised
    ordered, n = np.sort(standardised(z)), 2 * len(z)

    def scores(values: Array) -> Array:
        """Return normal scores of values by their rank among z."""
        x = standardised(values)
        rank = np.searchsorted(ordered, x, "left") + np.searchsorted(ordered, x, "right")
        return ndtri(np.clip(rank, 1, n - 1) / n)  # ties share their mean rank

    size = scores(z).std()
    return lambda values: scores(values) / size


def design(confounders: list[Confounder], rows: Array, degree: int) -> Array:
    """Return a design matrix: ones, indicators of levels, and powers of numbers."""
    columns = [np.ones((len(rows), 1))]
    for confounder in confounders:
        if confounder.values is None:
            codes = confounder.codes[rows]
            columns.append((codes[:, None] == np.unique(codes)[1:]).astype(float))
        else:
            z = confounder.values[rows]
            z = z / largest_of(z)
            z = (z - z.mean()) / (z.std() or 1.0)
            columns.append(z[:, None] ** np.arange(1, degree + 1))
    return np.column_stack(columns)


def fitted(D: Array, Y: Array) -> Array:
    """Return the least-squares coefficients of Y on D."""
    return np.asarray(np.linalg.lstsq(D, Y, rcond=None)[0])


def projection(D: Array) -> Callable[[Array], Array]:
    """Return a function that returns the residuals of a regression on D.

    It is faster than `left_of` for several tables.
    """
    left, size, _ = np.linalg.svd(D, full_matrices=False)
    Q = left[:, size > max(D.shape) * np.finfo(float).eps * size[0]]
    in_type = {np.dtype(kind): Q.astype(kind) for kind in (np.float32, np.float64)}

    def off(Y: Array) -> Array:
        """Return the residuals of Y."""
        own: Array = in_type[Y.dtype]
        return np.subtract(Y, found := own @ (own.T @ Y), out=found)

    return off


def left_of(D: Array, Y: Array) -> Array:
    """Return the residuals of a least-squares regression of Y on D."""
    return Y - D @ fitted(D, Y)
