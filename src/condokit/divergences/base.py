"""Base classes of divergences, and the general minimiser for those without a closed form."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator

from condokit.checks import Array, said
from condokit.conditionals import Moments
from condokit.data.arrays import ones_for_zeros
from condokit.maps.families import DiagonalFamily, MapFamily, MatrixFamily
from condokit.solvers.lbfgs import Evaluation, Objective, descend
from condokit.solvers.solution import Solution
from condokit.solvers.units import Units
from condokit.summaries.gaussians import GaussianPair
from condokit.summaries.moments import MomentPair


class Divergence(BaseEstimator, ABC):
    """Base class of all divergences: what a map minimises.

    A divergence of your own needs `forms` and `solve`. The keys of `forms` are the forms of maps
    that it can find ("diagonal", "matrix", "low-rank"), the values the summaries of the data that
    it needs for them: "moments" (`MomentPair`), "gaussians" (`GaussianPair`), "factors"
    (`Factors`), "samples" (`Samples`) or "rows" (`Rows`). A `MomentDivergence` is simpler to write.

    Examples
    --------
    >>> from condokit import ReverseKL
    >>> from condokit.divergences import Divergence
    >>> isinstance(ReverseKL(), Divergence), ReverseKL.forms["diagonal"]
    (True, 'moments')
    """

    forms: ClassVar[dict[str, str]]
    # whether matrices have a closed form, from balanced moments, so that one stratum is enough
    in_closed_form: ClassVar[bool] = False
    # whether the objective contains the weights of the prior
    is_weighted: ClassVar[bool] = True

    def needs(self, family: MapFamily) -> str:
        """Return the name of the summary that is needed to find maps of a family."""
        return self.forms[family.form]

    def uses(self, family: MapFamily) -> set[str]:
        """Return which of the arguments "prior" and "conditional" change the maps of a family.

        Parameters
        ----------
        family : MapFamily
            The family of maps.

        Returns
        -------
        set of str
            The arguments that are used; naming another one is an error.
        """
        nothing_to_find = family.form == "diagonal" and not (family.has_scale or family.has_offset)
        if nothing_to_find or self.forms.get(family.form) == "rows":
            return set()
        return {"prior", "conditional"} if self.is_weighted else {"conditional"}

    def supports(self, family: MapFamily) -> str | None:
        """Return why maps of a family cannot be found; None if they can. Nothing is computed.

        Parameters
        ----------
        family : MapFamily
            The family of maps.

        Returns
        -------
        str or None
            A sentence for the user, or None.
        """
        return None if family.form in self.forms else self.refusal(family)

    def refusal(self, family: MapFamily) -> str:
        """Return a sentence that says which maps this divergence finds, or which one to use."""
        text = "{mine} finds diagonal maps only, not {family}."
        if family.form == "diagonal":
            text = "{mine} finds full matrices, not {family}. Use {@map='affine'}, or another "
            text += "divergence."
        if family.form == "low-rank":
            text = "{@map='low-rank'} is found by {@divergence='reverse-kl'} in its exact variant, "
            text += "not by {divergence!r}."
        names = {"mine": type(self).__name__, "family": type(family).__name__}
        return said(text, divergence=self, **names)

    @abstractmethod
    def solve(self, family: Any, summary: Any) -> Solution:
        """Find the best map of a family from a summary of the data.

        Parameters
        ----------
        family : MapFamily
            A family that is supported.
        summary : MomentPair, GaussianPair, Factors, Samples or Rows
            The summary that `forms` names.

        Returns
        -------
        Solution
            The map, its standard errors if there is a formula for them, and facts of the search.
        """

    def matrix_objective(self, units: Units) -> Objective | None:
        """Return the objective of matrices, for standard errors; None if there are none."""
        return None


def in_units(solve: Callable[..., Solution]) -> Any:
    """Decorate a closed form to compute with features in units of their spread.

    So that no power overflows. Units are powers of two, so that nothing is rounded; they are the
    same for both domains if the map has no scale.
    """

    @wraps(solve)
    def solved(self: Any, family: DiagonalFamily, pair: MomentPair) -> Solution:
        spreads = (ones_for_zeros(side.spread) for side in (pair, pair.swapped()))
        to, own = (np.exp2(np.round(np.log2(spread))) for spread in spreads)
        own = own if family.has_scale else to
        found = solve(self, family, pair.in_units(own, to))
        se_image = None if found.se_image is None else to * found.se_image
        centre, scale = own * found.centre, found.scale * (to / own)
        return replace(found, centre=centre, image=to * found.image, scale=scale, se_image=se_image)

    return solved


class MomentDivergence(Divergence):
    """A divergence between mapped query moments and reference moments, averaged over the prior.

    A divergence of your own needs `value_and_grad` only; it can then find all diagonal maps.

    Examples
    --------
    >>> from condokit import ConDoAdapter, datasets
    >>> from condokit.divergences import MomentDivergence
    >>> class SquaredGap(MomentDivergence):
    ...     def value_and_grad(self, query, reference, weights):
    ...         mean, var = query.mean - reference.mean, query.var - reference.var
    ...         w = weights[:, None]
    ...         return (w * (mean**2 + var**2)).sum(), 2 * w * mean, 2 * w * var
    >>> p = datasets.make_categorical1d(200, random_state=0)  # the true map is x / 2 - 2.5
    >>> data = p.X_query, p.X_reference, p.Z_query, p.Z_reference
    >>> ConDoAdapter(divergence=SquaredGap()).fit_pair(*data).map_.scale.round(1)
    array([0.5])
    """

    forms: ClassVar[dict[str, str]] = {"diagonal": "moments"}

    @abstractmethod
    def value_and_grad(self, query: Moments, reference: Moments, weights: Array) -> Evaluation:
        """Return the value and its gradients with respect to means and variances of `query`.

        Parameters
        ----------
        query, reference : Moments
            Means and variances of shape (n_values, n_features) at the compared confounder values;
            those of the query are mapped already.
        weights : ndarray of shape (n_values,)
            Weights of these values, which sum to one.

        Returns
        -------
        tuple of float and two ndarray of shape (n_values, n_features)
            The value, summed over features, and the two gradients.
        """

    def value(self, pair: MomentPair) -> float:
        """Return the value without its gradients."""
        return self.value_and_grad(pair.query, pair.reference, pair.weights)[0]

    @in_units
    def by_descent(self, family: DiagonalFamily, summary: MomentPair) -> Solution:
        """Find the best map of a family by L-BFGS, around the balanced means.

        Parameters
        ----------
        family : DiagonalFamily
            Whether the map has scales, offsets, or both.
        summary : MomentPair
            Moments of both domains, and the weights of confounder values.

        Returns
        -------
        Solution
            The map.
        """
        both, weights = (summary.query, summary.reference), summary.weights
        centre, image = (weights @ side.mean * family.has_offset for side in both)
        query, reference = (replace(s, mean=s.mean - at) for s, at in zip(both, (centre, image)))

        def objective(scale: Array, offset: Array) -> Evaluation:
            mean, var = query.mean * scale + offset, query.var * scale**2
            mapped = replace(query, mean=mean, var=var, precision=query.precision / scale**2)
            value, d_mean, d_var = self.value_and_grad(mapped, reference, weights)
            d_scale = d_mean * query.mean + 2 * d_var * query.var * scale
            return value, d_scale.sum(axis=0), d_mean.sum(axis=0)

        start = family.around(np.ones(len(centre)), np.zeros(len(centre)))
        found = descend(objective, start, 1000, 1e-14, 1e-9)
        return Solution(found.scale, centre, image + found.offset, n_iter=found.n_iter)

    solve = by_descent  # a divergence with a closed form overrides this


class GaussianDivergence(MomentDivergence):
    """A divergence that can also find full matrices, from means and covariances."""

    forms = {"diagonal": "moments", "matrix": "gaussians"}

    def solve(self, family: Any, summary: Any) -> Solution:  # noqa: D102
        if family.form == "matrix":
            return self.solve_matrix(family, summary)
        return self.solve_diagonal(family, summary)

    def solve_diagonal(self, family: DiagonalFamily, pair: MomentPair) -> Solution:
        """Find the best diagonal map."""
        return self.by_descent(family, pair)

    @abstractmethod
    def solve_matrix(self, family: MatrixFamily, pair: GaussianPair) -> Solution:
        """Find the best full matrix."""
