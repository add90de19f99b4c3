"""Rows measured in both domains: a fitted map refined by regression on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from condokit._validation import Array, IdentifiabilityWarning, warn
from condokit.domains import Domains
from condokit.maps import AffineMap, DiagonalFamily, MapFamily, Rigid
from condokit.statistics import positive

_TRUST = (np.inf, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.0)
_FOLDS = 5
_USELESS = 0.95  # held-out error, in standard deviations, from which pairs tell nothing
_TOO_FEW = 8  # pairs below which there is little to choose by
_FEW = 0.02  # share of rows below which held-out pairs hardly matter to the first map
_RIDGE = 0.1  # of the mean variance of the query's features
_RIDGES = (0.03, 0.1, 0.3, 1.0)


def check_pairs(pairs: Any, domains: Domains) -> tuple[Array, Array]:
    """Return the positions of paired rows in the query's and the reference's table."""
    try:
        query, reference = (np.asarray(side) for side in pairs)
    except (TypeError, ValueError):
        raise ValueError(
            "'pairs' must be two lists of row numbers, (rows_query, rows_reference), of equal "
            "length."
        ) from None
    sizes = [table.n_rows for table in domains.tables]
    for name, side, size in zip(("X_query", "X_reference"), (query, reference), sizes):
        if side.ndim != 1 or len(side) == 0 or side.dtype.kind not in "iu":
            raise ValueError(f"'pairs' must list row numbers of {name}. Got {side!r:.80}.")
        if side.min() < 0 or side.max() >= size:
            raise ValueError(
                f"'pairs' names row {side.max() if side.max() >= size else side.min()} of {name}, "
                f"which has {size} rows, counted from 0."
            )
    if domains.weights is not None:
        both = np.concatenate([query, sizes[0] + reference])
        if (domains.weights[both] == 0).any():
            raise ValueError("'pairs' names rows whose sample_weight is 0. Leave them out.")
    if len(query) != len(reference):
        raise ValueError(
            f"'pairs' lists {len(query)} query rows but {len(reference)} reference rows; the first "
            "of one belongs to the first of the other, and so on."
        )
    return query, reference


def refine(
    affine: AffineMap,
    family: MapFamily,
    domains: Domains,
    pairs: tuple[Array, Array],
    refit: Callable[[Array], AffineMap],
) -> tuple[AffineMap, dict[str, Any]]:
    r"""Pull a map towards pairs of rows, as far as held-out pairs advise.

    With pairs (x, y) and a map :math:`f_0` learned without them, the refined map of the family
    makes :math:`\sum_i |A x_i + b - y_i|^2 + \lambda n\, \overline{|A x + b - f_0(x)|^2}` small,
    the mean being over all query rows: a regression in which the first map stands in for
    the rows that have no partner. Or it is ridge regression on the pairs alone. That choice and
    :math:`\lambda` have the least error on held-out pairs, for which `refit` learns the first map
    again without their rows if they are more than a few of all.
    """
    n_query = domains.tables[0].n_rows
    everyone = domains.side(True, np.arange(n_query))
    reference = domains.side(False, np.arange(n_query, len(domains.is_query)))
    X, Y = everyone[pairs[0]], reference[pairs[1]]
    known = ~np.isnan(np.hstack([X, Y])).any(axis=1)
    if not known.any():
        raise ValueError(
            f"All {len(X)} 'pairs' lack the value of a feature. Leave features out, or `pairs`."
        )
    pairs, X, Y = (pairs[0][known], pairs[1][known]), X[known], Y[known]
    everyone, reference = (rows[~np.isnan(rows).any(axis=1)] for rows in (everyone, reference))
    unit = positive(reference.std(axis=0))
    standard = not isinstance(family, DiagonalFamily | Rigid)
    problems = {
        "unpaired map": _Regression(family, everyone, unit, standard),
        "ridge": _Regression(family, everyone, unit, False),
        "ridge in standard units": _Regression(family, everyone, unit, True),
    }
    constant: tuple[Array, Array] = (np.zeros_like(affine.A), reference.mean(axis=0))
    unpaired: tuple[Array, Array] = (affine.A, affine.b)
    choices = [("unpaired map", trust) for trust in _TRUST]
    if standard:  # a matrix may also be learned from the pairs alone
        ridges = ["ridge", "ridge in standard units"][: 1 if len(X) < _TOO_FEW else 2]
        choices += [(name, amount) for name in ridges for amount in _RIDGES]
    loss = np.zeros(len(choices))
    n_folds = min(_FOLDS, len(X))
    fold = np.arange(len(X)) % n_folds
    for f in range(n_folds) if len(X) >= 3 else ():
        known, asked = fold != f, fold == f
        kept = domains.kept()
        kept[pairs[0][asked]] = kept[n_query + pairs[1][asked]] = False
        again = affine if len(X) < _FEW * len(kept) else refit(kept)
        first: tuple[Array, Array] = (again.A, again.b)
        for k, (name, trust) in enumerate(choices):
            anchor = first if name == "unpaired map" else constant
            A, b = problems[name].solve(*anchor, X[known], Y[known], trust)
            loss[k] += ((((X[asked] @ A.T + b) - Y[asked]) / unit) ** 2).sum()
    name, trust = choices[int(np.argmin(loss))] if len(X) >= 3 else ("unpaired map", 1.0)
    anchor = unpaired if name == "unpaired map" else constant
    A, b = problems[name].solve(*anchor, X, Y, trust)
    diagonal = isinstance(family, DiagonalFamily)
    refined = AffineMap(
        np.diag(A).copy() if diagonal else A,
        b,
        affine.feature_names,
        links=affine.links,
        output_names=affine.output_names,
    )
    errors = np.sqrt(loss / Y.size) if len(X) >= 3 else np.full(len(loss), np.nan)
    if errors.min() > _USELESS:
        warn(
            f"The {len(X)} pairs are predicted no better than by a constant (held-out error "
            f"{errors.min():.2f} standard deviations): check that their rows belong together.",
            IdentifiabilityWarning,
        )
    return refined, {
        "n_pairs": len(X),
        "learned_from": name,
        "trust": trust,
        "held_out_error": float(errors.min()),
        "held_out_error_without": float(errors[_TRUST.index(np.inf)]),
    }


class _Regression:
    """Least squares on pairs, with another map standing in for rows without a partner.

    With features in standard units, or as they are: a ridge then favours those that vary most.
    """

    def __init__(self, family: MapFamily, everyone: Array, unit: Array, standard: bool) -> None:
        self.family = family
        self.query_unit, self.unit = np.ones(everyone.shape[1]), np.ones(len(unit))
        if standard:
            self.query_unit, self.unit = positive(everyone.std(axis=0)), unit
            everyone = everyone / self.query_unit
        self.middle = everyone.mean(axis=0)
        self.cov = np.cov(everyone.T, bias=True).reshape(len(self.middle), -1)

    def solve(self, A: Array, b: Array, X: Array, Y: Array, trust: float) -> tuple[Array, Array]:
        """Return the map; pseudo-pairs (x, A x + b) have the moments of all query rows.

        Around a constant map, `trust` is the strength of plain ridge instead.
        """
        if np.isinf(trust):
            return A, b
        A, b = A * self.query_unit / self.unit[:, None], b / self.unit
        A, b = self._solve(A, b, X / self.query_unit, Y / self.unit, trust)
        return A * self.unit[:, None] / self.query_unit, b * self.unit

    def _solve(self, A: Array, b: Array, X: Array, Y: Array, trust: float) -> tuple[Array, Array]:
        amount, trust = (_RIDGE, trust) if A.any() else (trust, 0.0)
        lift = trust * len(X)
        total = len(X) + lift
        image = A @ self.middle + b
        middle_x = (X.sum(axis=0) + lift * self.middle) / total
        middle_y = (Y.sum(axis=0) + lift * image) / total
        left, right, far = X - middle_x, Y - middle_y, self.middle - middle_x
        ridge = amount * float(np.mean(np.diag(self.cov)))
        gram = left.T @ left + lift * (self.cov + np.outer(far, far)) + ridge * np.eye(len(far))
        cross = right.T @ left + lift * (A @ self.cov + np.outer(image - middle_y, far)) + A * ridge
        family = self.family
        if isinstance(family, DiagonalFamily):
            if not family.has_offset:
                return A, b
            scale = np.diag(cross) / np.diag(gram) if family.has_scale else np.ones(len(b))
            fitted = np.diag(np.where(scale > 0, scale, np.diag(A)))
        elif isinstance(family, Rigid):
            turn, size, back = np.linalg.svd(cross)
            fitted = (size.sum() / np.trace(gram) if family.has_scale else 1.0) * turn @ back
        else:
            fitted = np.linalg.solve(gram, cross.T).T
        return fitted, middle_y - fitted @ middle_x
