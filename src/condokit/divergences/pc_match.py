"""Principal axes matched in order: for shifts that nearly keep distances."""

from __future__ import annotations

from condokit.divergences.base import MatrixDivergence
from condokit.divergences.matrix import MatrixSolution, gap, match_axes, nearest_rigid
from condokit.domains import GaussianPair
from condokit.maps import MatrixFamily, Rigid


class PCMatch(MatrixDivergence):
    r"""Align the principal axes of the balanced covariances in order of their size.

    :math:`A = V_r \operatorname{diag}(s_j \sqrt{\lambda_{r,j} / \lambda_{q,j}}) V_q'`. The sign
    :math:`s_j` of an axis is the one under which the stratum means along it agree: as a
    log-likelihood ratio, :math:`2 \sum_k u_{q,jk} u_{r,jk} / (1/n_k + 1/m_k)` with means u in units
    of the axis' spread, plus :math:`2 g_q g_r / (6/N_q + 6/N_r)` for skewnesses g within strata. If
    that leaves a reflection, the least certain axis is turned, unless even it is certain.

    Finds rotations that moments of strata cannot determine, if the sizes of the axes are distinct
    and kept by the shift; poor where they are not, so never a default.
    """

    def solve(self, family: MatrixFamily, pair: GaussianPair) -> MatrixSolution:
        """Return the map in closed form."""
        if family.is_penalised:
            raise ValueError("divergence='pc-match' takes no penalty or bound on the matrix.")
        A, b = match_axes(pair)
        if isinstance(family, Rigid):
            A = nearest_rigid(A, family.has_scale)
            b = pair.weights @ pair.reference.mean - A @ (pair.weights @ pair.query.mean)
        return MatrixSolution(A, b, gap(A, b, pair))
