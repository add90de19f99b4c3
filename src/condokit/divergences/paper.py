"""The paper's Gaussian formulas exactly as printed: reverse KL, and transport without confounders.

S = query and T = reference in its formulas. They are here for comparison with the exact forms of
`condokit.divergences.kl` and `transport`; they need not be the minimum of any objective.
"""

from typing import Any, Literal

import numpy as np
from scipy.optimize import minimize

from condokit.checks import Array, check_integer, check_word, refusal, warn
from condokit.divergences.samples import RowDivergence
from condokit.maps.families import MapFamily
from condokit.solvers.gaussian_kl import KLObjective
from condokit.solvers.matrices import transport_matrix
from condokit.solvers.solution import Solution
from condokit.solvers.units import Units, decoded
from condokit.summaries.gaussians import GaussianPair, Gaussians
from condokit.summaries.samples import Samples

_MOST_STEPS = 200  # with nearly singular covariances the search would not end
JITTER = 1e-8  # added to variances and standard deviations, so that no divisor is 0


class _PaperDivergence(RowDivergence):
    """A divergence for the two families of maps that the paper has, from all rows."""

    max_rows = 10**9

    def supports(self, family: MapFamily) -> str | None:  # noqa: D102
        whole = getattr(family, "has_scale", False) and getattr(family, "has_offset", False)
        if whole and (family.form == "diagonal" or (family.form == "matrix" and family.is_free)):
            return super().supports(family)
        return f"{type(self).__name__} finds maps 'location-scale' and 'affine' only."


class PaperKL(_PaperDivergence):
    r"""The paper's ConDo Gaussian KLD, from rows in strata or imputed rows.

    Means and variances are those of the rows at each confounder value, plus 1e-8; variances have
    the divisor n, covariances n - 1. Location-scale maps have the closed form of the paper's
    Appendix A, with weights,

    .. math::
        P = \sum_n w_n [\sigma_{S_n}^2 + (\mu_{S_n} - \bar\mu_S)^2],\quad
        Q = \sum_n w_n (\mu_{S_n} - \bar\mu_S)(\mu_{T_n} - \bar\mu_T),\quad
        m = \frac{Q + \sqrt{Q^2 + 4 P \sum_n w_n \sigma_{T_n}^2}}{2 P},\quad
        b = \bar\mu_T - m \bar\mu_S,

    which is the minimum of the reverse KL divergence only if all :math:`\sigma_{T_n}^2` are equal.
    Matrices are found by trust-region Newton conjugate gradients; see `AffineKL`.

    Parameters
    ----------
    start : {"identity", "location-scale"}, default="identity"
        Where the search among matrices starts: the identity, or the closed form.
    steps : int or None, default=None
        Largest number of Newton steps in the user's units; None is until convergence, or 200 steps
        in units in which both domains are white.
    published : bool, default=False
        Whether to divide the weighted means :math:`\bar\mu` by the number of confounder values a
        second time: the slip behind the published numbers.

    Examples
    --------
    >>> from condokit import ConDoAdapter, datasets
    >>> from condokit.divergences.paper import PaperKL
    >>> p = datasets.make_categorical1d(200, random_state=0)  # the true map is x / 2 - 2.5
    >>> data = p.X_query, p.X_reference, p.Z_query, p.Z_reference
    >>> ConDoAdapter(divergence=PaperKL(), shrinkage=None).fit_pair(*data).map_.scale.round(1)
    array([0.5])
    """

    def __init__(
        self,
        start: Literal["identity", "location-scale"] = "identity",
        steps: int | None = None,
        published: bool = False,
    ) -> None:
        self.start, self.steps, self.published = start, steps, published

    def solve(self, family: Any, summary: Samples) -> Solution:  # noqa: D102
        check_word("'start' of PaperKL", self.start, ("identity", "location-scale"))
        if self.steps is not None:
            check_integer("steps", self.steps, 1)
        w, sides = summary.weights, (summary.query, summary.reference)
        mean_q, mean_r = (np.array([rows.mean(axis=0) for rows in side]) for side in sides)
        var_q, var_r = (np.array([rows.var(axis=0) for rows in side]) + JITTER for side in sides)
        scale, offset = appendix(w, mean_q, var_q, mean_r, var_r, self.published)
        if family.form == "diagonal":
            return Solution.of(scale, offset)
        unknown = np.zeros(len(w))
        query, reference = (
            Gaussians(mean, _covariances(side), unknown)
            for mean, side in zip((mean_q, mean_r), sides)
        )
        pair = GaussianPair(query, reference, w)
        # The minimum is that of all units, and in white ones the search is ten times as fast. After
        # a few steps units matter: then they are the user's, as in the paper.
        units = Units(pair, "white" if self.steps is None else "as given")
        at_start = self.start == "location-scale"
        A, b = (np.diag(scale), offset) if at_start else (np.eye(len(offset)), 0 * offset)
        found = AffineKL(units).descend(*units.encode(A, b), self.steps)
        return decoded(units, found)


class PaperOT(_PaperDivergence):
    r"""The paper's baseline, optimal transport between two Gaussians without confounders.

    :math:`m = \sigma_T / \sigma_S` with the divisor n and 1e-8 added to both, or
    :math:`A = \Sigma_S^{-1/2} (\Sigma_S^{1/2} \Sigma_T \Sigma_S^{1/2})^{1/2} \Sigma_S^{-1/2}` with
    the divisor n - 1 and 1e-8 on the diagonals; :math:`b = \mu_T - A \mu_S`.

    Examples
    --------
    >>> import numpy as np
    >>> from condokit import ConDoAdapter
    >>> from condokit.divergences.paper import PaperOT
    >>> X = np.arange(6.0)[:, None]
    >>> ConDoAdapter(divergence=PaperOT(), shrinkage=None).fit_pair(X, 2 * X + 5).map_.A.round(6)
    array([[2.]])
    """

    def solve(self, family: Any, summary: Samples) -> Solution:  # noqa: D102
        if len(summary.weights) > 1:
            raise refusal("PaperOT compares domains without confounders. Leave them out.")
        [X], [Y] = summary.query, summary.reference
        if family.form == "diagonal":
            A = (Y.std(axis=0) + JITTER) / (X.std(axis=0) + JITTER)
            return Solution.of(A, Y.mean(axis=0) - A * X.mean(axis=0))
        A = transport_matrix(_covariances([X])[0], _covariances([Y])[0])
        return Solution.of(A, Y.mean(axis=0) - A @ X.mean(axis=0))


def appendix(
    w: Array, mean_q: Array, var_q: Array, mean_r: Array, var_r: Array, slip: bool = False
) -> tuple[Array, Array]:
    """Return scales and offsets of the paper's Appendix A; see `PaperKL`."""
    centre_q, centre_r = (w @ mean / (len(w) if slip else 1) for mean in (mean_q, mean_r))
    P = w @ (var_q + (mean_q - centre_q) ** 2)
    Q = w @ ((mean_q - centre_q) * (mean_r - centre_r))
    scale = (Q + np.sqrt(Q**2 + 4 * P * (w @ var_r))) / (2 * P)
    return scale, centre_r - scale * centre_q


def _covariances(strata: list[Array]) -> Array:
    """Return the covariances of the rows of each stratum, plus the jitter on the diagonal."""
    fewest, d = min(map(len, strata)), strata[0].shape[1]
    if fewest < 2:
        raise refusal(
            "A confounder value has one row in a domain, of which no covariance is known. Add "
            "rows, merge levels, or use {@map='location-scale'}."
        )
    if fewest <= d:
        text = "The covariance of {d} features of {fewest:rows} rows is singular; the paper has "
        text += "nothing against that, and the map follows noise."
        warn("singular-covariance", text, d=d, fewest=fewest)
    spread = [np.atleast_2d(np.cov(rows, rowvar=False)) for rows in strata]
    return np.array(spread) + JITTER * np.eye(d)


class AffineKL(KLObjective):
    r"""Twice the reverse KL divergence after A x + b, without terms that do not depend on A or b.

    .. math::
        -2 \log|\det A| + \sum_n w_n \big[\operatorname{tr}(\Sigma_{T_n}^{-1} A \Sigma_{S_n} A')
        + e_n' \Sigma_{T_n}^{-1} e_n\big], \quad e_n = A \mu_{S_n} + b - \mu_{T_n}.
    """

    def __init__(self, units: Units) -> None:
        super().__init__(units)
        query, reference = units.log_dets  # so that values are those in the user's units
        self.d, self.constant = units.n_features, query - reference

    def descend(self, A: Array, b: Array, steps: int | None) -> Solution:
        """Minimise by at most so many steps of trust-region Newton conjugate gradients."""
        how: Any = {"method": "trust-ncg", "options": {"maxiter": steps or _MOST_STEPS}}
        start, curve = np.append(A.ravel(), b), self.hessian_product
        found = minimize(self.of_numbers, start, jac=True, hessp=curve, **how)
        A, b = self._split(found.x)
        return Solution.of(A, b, objective=float(found.fun), n_iter=int(found.nit))

    def _split(self, x: Array) -> tuple[Array, Array]:
        """Return A and b from one array of numbers."""
        return x[: self.d**2].reshape(self.d, self.d), x[self.d**2 :]

    def of_numbers(self, x: Array) -> tuple[float, Array]:
        """Return the objective and its gradient at x, the entries of A followed by b."""
        value, G, g = self(*self._split(x))
        return 2 * value, 2 * np.append(G.ravel(), g)

    def hessian_product(self, x: Array, v: Array) -> Array:
        """Return the derivative of the gradient in the direction v: the Hessian times v."""
        (A, _), (V, u) = self._split(x), self._split(v)
        inverse = np.linalg.inv(A)
        PVC, pull = self._pulled(V, self.mean @ V.T + u)
        G = PVC + pull.T @ self.mean + (inverse @ V @ inverse).T
        return 2 * np.append(G.ravel(), pull.sum(axis=0))
