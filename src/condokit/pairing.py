"""Rows measured in both domains: a fitted map refined by regression on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from condokit._validation import Array
from condokit.domains import Domains
from condokit.maps import AffineMap, DiagonalFamily, MapFamily, Rigid

_TRUST = (np.inf, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.0)
_FOLDS = 5
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
    unit = reference.std(axis=0)
    unit = np.where(unit > 0, unit, 1.0)
    problem = _Regression(family, everyone)
    constant = np.zeros_like(affine.A), reference.mean(axis=0)
    ridge = not isinstance(family, DiagonalFamily | Rigid)
    choices = [("unpaired map", trust) for trust in _TRUST]
    choices += [("constant", amount) for amount in _RIDGES] if ridge else []
    loss = np.zeros(len(choices))
    n_folds = min(_FOLDS, len(X))
    fold = np.arange(len(X)) % n_folds
    for f in range(n_folds) if len(X) >= 3 else ():
        known, asked = fold != f, fold == f
        kept = np.ones(len(domains.is_query), dtype=bool) if domains.keep is None else domains.keep
        kept = kept.copy()
        kept[pairs[0][asked]] = kept[n_query + pairs[1][asked]] = False
        first = affine if len(X) < _FEW * len(kept) else refit(kept)
        anchors = {"unpaired map": (first.A, first.b), "constant": constant}
        for k, (name, trust) in enumerate(choices):
            A, b = problem.solve(*anchors[name], X[known], Y[known], name, trust)
            loss[k] += ((((X[asked] @ A.T + b) - Y[asked]) / unit) ** 2).sum()
    anchor, trust = choices[int(np.argmin(loss))] if len(X) >= 3 else ("unpaired map", 1.0)
    anchors = {"unpaired map": (affine.A, affine.b), "constant": constant}
    A, b = problem.solve(*anchors[anchor], X, Y, anchor, trust)
    diagonal = isinstance(family, DiagonalFamily)
    refined = AffineMap(
        np.diag(A).copy() if diagonal else A,
        b,
        affine.feature_names,
        links=affine.links,
        output_names=affine.output_names,
    )
    error = float(np.sqrt(loss.min() / Y.size)) if len(X) >= 3 else float("nan")
    return refined, {
        "n_pairs": len(X),
        "stands_in": anchor,
        "trust": trust,
        "held_out_error": error,
        "held_out_error_without": float(np.sqrt(loss[_TRUST.index(np.inf)] / Y.size)),
    }


class _Regression:
    """Least squares on pairs, with another map standing in for rows without a partner."""

    def __init__(self, family: MapFamily, everyone: Array) -> None:
        self.family = family
        self.middle = everyone.mean(axis=0)
        self.cov = np.cov(everyone.T, bias=True).reshape(len(self.middle), -1)

    def solve(
        self, A: Array, b: Array, X: Array, Y: Array, anchor: str, trust: float
    ) -> tuple[Array, Array]:
        """Return the map; pseudo-pairs (x, A x + b) have the moments of all query rows.

        Around a constant map, `trust` is the strength of plain ridge instead.
        """
        if np.isinf(trust):
            return A, b
        amount, trust = (trust, 0.0) if anchor == "constant" else (_RIDGE, trust)
        lift = trust * len(X)
        total = len(X) + lift
        image = A @ self.middle + b
        middle_x = (X.sum(axis=0) + lift * self.middle) / total
        middle_y = (Y.sum(axis=0) + lift * image) / total
        left, right, far = X - middle_x, Y - middle_y, self.middle - middle_x
        ridge = amount * np.trace(self.cov) / len(self.cov)
        gram = left.T @ left + lift * (self.cov + np.outer(far, far)) + ridge * np.eye(len(far))
        cross = right.T @ left + lift * (A @ self.cov + np.outer(image - middle_y, far)) + ridge * A
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
