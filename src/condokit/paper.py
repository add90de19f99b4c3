"""The method and the baselines exactly as published, with the paper's symbols.

For comparisons with McCarter, *Towards Backwards-Compatible Data with Confounded Domain
Adaptation* (TMLR 2024). Its formulas map S to T: S is the query, T the reference.
"""

from dataclasses import replace
from typing import Any, Literal

import numpy as np

from condokit import checks
from condokit.adapter import ConDoAdapter
from condokit.checks import Array, Note, check_integer, check_number, check_seed, check_word
from condokit.compare.priors import ProductPrior, Support
from condokit.conditionals.chained import Chained
from condokit.data import kernels
from condokit.data.covariates import Covariates
from condokit.data.study import Strata, Study
from condokit.divergences.minibatches import MinibatchMMD, check_share
from condokit.divergences.paper import PaperKL, PaperOT

__all__ = ["ConDo", "MMDBaseline", "OTBaseline", "PaperPrior"]

_OF_MINIBATCHES: tuple[str, ...] = ("k_X", "h_X", "K_X", "K_Z", "F", "epochs")
_OF_MINIBATCHES += ("learning_rate", "weight_decay", "patience")
_SEVERAL = ("epochs", "learning_rate", "F")  # of which more than one value was published
_DESCENTS = ((5, 1e-3), (100, 1e-2))  # epochs and learning rates of the published numbers
_SHARES = (1.0, 0.01)  # values of F: of all experiments, and of the photos


class PaperPrior(ProductPrior):
    r"""The product prior of the paper's equation, or that behind the published numbers.

    By the equation, every row n of both domains has the weight
    :math:`w_n \propto \hat f_S(z_n) \hat f_T(z_n)`, with kernel densities :math:`\hat f`. The
    published numbers used :math:`\sqrt{p_S p_T}` for categories; for numbers, half of the weight
    is on rows of S in proportion to :math:`\hat f_T`, and half on rows of T to :math:`\hat f_S`.

    Parameters
    ----------
    k_Z : callable or None, default=None
        The kernel on confounders as the user gave them, :math:`k_Z(Z_1, Z_2)` -> matrix. None is
        an RBF kernel for numbers (whose covariance is that of the domain times Silverman's factor
        squared) times equality of categories.
    published : bool, default=False
        Whether to use the weights behind the published numbers.

    Examples
    --------
    >>> from condokit import ConDoAdapter, datasets
    >>> from condokit.paper import PaperPrior
    >>> p = datasets.make_categorical1d(200, random_state=0)
    >>> data = p.X_query, p.X_reference, p.Z_query, p.Z_reference
    >>> ConDoAdapter(divergence="ot", prior=PaperPrior()).fit_pair(*data).support_.weights
    array([0.5, 0.5])
    """

    most_points = 10**9
    kernel = bandwidth = None  # for conditionals that smooth by a kernel; the paper has none

    def __init__(self, k_Z: kernels.Kernel | None = None, published: bool = False) -> None:
        self.k_Z, self.published = k_Z, published

    @property
    def variant(self) -> Literal["product", "paper"]:  # type: ignore[override]
        """The variant of `ProductPrior`: which rows are weighted by which densities."""
        return "product" if self.published else "paper"

    @property
    def sees_objects(self) -> bool:  # type: ignore[override]
        """Whether the kernel is called with confounders as the user gave them."""
        return self.k_Z is not None

    def weigh(self, share_query: Array, share_reference: Array, share_pooled: Array) -> Array:  # noqa: D102
        if self.published:
            return np.sqrt(share_query * share_reference)
        return super().weigh(share_query, share_reference, share_pooled)

    def density(self, at: Covariates, data: Covariates) -> Array:  # noqa: D102
        kernels.check_kernel(self.k_Z, None, "k_Z")
        if self.k_Z is None:  # in coordinates in which numbers have the identity as covariance
            n, p = data.Z.shape
            cov = np.atleast_2d(np.cov(data.Z, rowvar=False)) if n > 1 else np.zeros((p, p))
            root = np.linalg.cholesky(cov + np.diag(1e-10 * np.diag(cov) + 1e-24))
            at, data = (replace(c, Z=np.linalg.solve(root, c.Z.T).T) for c in (at, data))
            width = np.full(p, (n * (p + 2) / 4) ** (-1 / (p + 4)))
        return kernels.density(at, data, width if self.k_Z is None else np.empty(0), self.k_Z)

    def support(self, domains: Study, strata: Strata) -> Support:
        """Return the strata of both domains; with categories only and k_Z, weights are its."""
        found = super().support(domains, strata)
        if self.k_Z is None or domains.continuous:
            return found
        kernels.check_kernel(self.k_Z, None, "k_Z")
        values = np.empty((len(strata.levels), len(strata.names)), dtype=object)
        values[:] = strata.levels
        values = values[:, 0] if len(strata.names) == 1 else values
        none = np.empty((len(values), 0))
        levels = Covariates(none, np.zeros(len(values), dtype=np.intp), 1, objects=values)
        K = kernels.call(self.k_Z, levels, levels)[found.index]
        weights = (K @ strata.count_query) * (K @ strata.count_reference) * found.n_rows
        if not weights.sum() > 0:
            raise ValueError("'k_Z' gives no weight to any confounder value of both domains.")
        return Support(**{**vars(found), "weights": weights / weights.sum()})


class GaussianKernel:
    r"""RBF kernel :math:`e^{-(z - z')^2 / 2 h^2}` of width h on numbers, times equal categories."""

    def __init__(self, width: float, is_number: list[bool]) -> None:
        self.width, self.is_number = width, is_number

    def __call__(self, left: Array, right: Array) -> Array:
        """Return the kernel matrix (n_left, n_right) between confounders."""
        K = np.ones((len(left), len(right)))
        sides = (side.reshape(len(side), -1).T for side in (left, right))
        for is_number, one, other in zip(self.is_number, *sides):
            if is_number:
                gap = np.subtract.outer(one.astype(float), other.astype(float))
                K *= np.exp(-0.5 * (gap / self.width) ** 2)
            else:
                K *= np.equal.outer(one, other).astype(float)
        return K

    def __repr__(self) -> str:
        return f"GaussianKernel({self.width:g})"


class _PaperAdapter(ConDoAdapter):
    """Base of the method and its baselines: no prior, conditional or shrinkage to choose."""

    # settings of `ConDoAdapter` that the paper does not have, or has in one form only
    prior: Any = "paper"
    conditional: Any = "auto"
    shrinkage = reliability = controls = None
    categorical: Any = None
    random_state: Any = None
    warn_overlap, min_overlap, F, published = 0.4, 0.05, 1.0, False
    is_baseline = False  # whether confounders are refused

    def fit_domains(  # noqa: D102
        self,
        domains: Study,
        pairs: tuple[Array, Array] | None = None,
        notes: list[Note] | None = None,
    ) -> ConDoAdapter:
        name = type(self).__name__
        check_word("'map'", self.map, ("location-scale", "affine"))
        if not isinstance(self.published, bool):
            raise ValueError(f"'published' must be True or False. Got {self.published!r}.")
        if not domains.has_rows:
            text = "{name} needs single rows, which statistics do not contain. {@Use ConDoAdapter}."
            raise checks.needs_rows(text, name=name)
        given = {"pairs": pairs, "groups": domains.groups, "sample_weight": domains.weights}
        for argument, value in given.items():
            if value is not None:
                raise checks.refusal(
                    f"{{@'{argument}'}} is not in the paper, so {name} does not take it. "
                    "{@Use ConDoAdapter}."
                )
        if self.is_baseline and domains.confounders:
            raise checks.refusal(
                f"{name} compares without {{@`confounders`}}: leave them out, or use ConDo."
            )
        return super().fit_domains(domains, None, notes)

    def described(self) -> dict[str, Any]:  # noqa: D102
        return super().described() | {"method": type(self).__name__}

    def _changed(self, names: tuple[str, ...]) -> str | None:
        """Return the first of some settings that was changed from its default, None if none was."""
        plain = type(self)()
        for name in names:
            value, default = (getattr(one, name, None) for one in (self, plain))
            # arrays and functions are never the default
            if value is not default and not (np.isscalar(value) and value == default):
                return name
        return None

    def _refuse_unpublished(self, settings: tuple[str, ...]) -> None:
        """With `published`, raise an error for settings with which nothing was published."""
        if not self.published:
            return
        if name := self._changed(tuple(name for name in settings if name not in _SEVERAL)):
            raise ValueError(f"The published numbers use no other '{name}'. Leave it out.")
        descent = getattr(self, "epochs", 5), getattr(self, "learning_rate", 1e-3)
        if descent not in _DESCENTS:
            raise ValueError(
                "The published numbers have 5 epochs with learning_rate=0.001, or 100 with 0.01. "
                f"Got {descent[0]} with {descent[1]}."
            )
        if getattr(self, "F", 1.0) not in _SHARES:
            text = "The published numbers have F=1, or F=0.01 for photos. Got "
            raise ValueError(f"{text}{self.F!r}.")

    def _minibatches(self) -> MinibatchMMD:
        """Return the paper's stochastic gradient descent on MMD."""
        return MinibatchMMD(
            **{name: getattr(self, name) for name in _OF_MINIBATCHES},
            redrawn=self.F != 1 and not self.published,
            random_state=check_seed(self.random_state),
        )


class ConDo(_PaperAdapter):
    r"""Confounded domain adaptation exactly as in the paper, with its symbols.

    The four ingredients of the paper's framework, and nothing else: a map :math:`A x + b`, the
    product prior over confounders, samples of features given confounders, and a divergence. There
    is no shrinkage, and standard errors only by `bootstrap`. `ConDoAdapter` has smaller errors; see
    "The paper, line by line" in the documentation.

    Parameters
    ----------
    divergence : {"kl", "mmd"}, default="kl"
        The Gaussian reverse Kullback-Leibler divergence, or the maximum mean discrepancy.
    map : {"location-scale", "affine"}, default="location-scale"
        Diagonal or full matrices A. Only "affine" with "mmd" maps between different features.
    k_X : callable or None, default=None
        For "mmd": the kernel on features, a function of squared distances over :math:`h_X` that
        returns its values and slopes. None is RBF, :math:`e^{-s}`.
    h_X : float or None, default=None
        For "mmd": the width of the kernel on features. None is the mean squared distance of the
        rows in a pair of sets.
    k_Z : callable or None, default=None
        The kernel on confounders for the prior, ``k_Z(Z1, Z2)`` -> matrix. None is RBF for numbers,
        times equality of categories.
    h_Z : float or None, default=None
        The width of that RBF kernel, :math:`\exp(-|z - z'|^2 / 2 h_Z^2)`. None is Silverman's
        factor, with the covariance of the numbers in each domain.
    K_X : int, default=20
        Number of imputations at a confounder value, and of rows in a set of a minibatch. Given
        categories, "kl" uses all rows.
    K_Z : int, default=8
        For "mmd": number of confounder values in a minibatch.
    rounds : int, default=2
        Given numbers: iterations of the chained equations.
    F : float, default=1.0
        For "mmd": number of pairs of sets in an epoch, as a share of the rows of the smaller
        domain; below 1 they are drawn again in each epoch. For "kl" given numbers: the share of
        the confounder values at which features are imputed.
    epochs : int, default=5
        For "mmd": passes over the pairs of sets.
    learning_rate : float, default=0.001
        For "mmd": learning rate of AdamW.
    weight_decay : float, default=0.0001
        For "mmd": weight decay of AdamW.
    patience : int, default=3
        For "mmd": number of epochs without a lower loss after which to stop.
    start : {"identity", "location-scale"}, default="identity"
        For "kl" and "affine": where Newton's method starts, at the identity or at the
        location-scale map, which has a closed form.
    steps : int or None, default=None
        For "kl" and "affine": largest number of Newton steps; None is until convergence, or 200.
    published : bool, default=False
        Whether to repeat the slips and choices behind the published numbers: centring means that
        are divided twice by the number of points; a prior :math:`\sqrt{p_S p_T}` for categories,
        and half of the weight on either domain for numbers; ten steps from the location-scale map;
        sets that are drawn once, whatever F.
    reference, categorical, missing, warn_overlap, min_overlap, n_jobs, verbose, random_state
        As in `ConDoAdapter`.

    Attributes
    ----------
    map_, support_, overlap_, divergence_, conditional_, report_
        As in `ConDoAdapter`.

    Examples
    --------
    >>> from condokit import datasets
    >>> from condokit.paper import ConDo
    >>> p = datasets.make_categorical1d(200, random_state=0)  # the true map is x / 2 - 2.5
    >>> data = p.X_query, p.X_reference, p.Z_query, p.Z_reference
    >>> ConDo("kl").fit_pair(*data).map_.b.round(1)
    array([-2.6])
    >>> ConDo("kl", published=True).fit_pair(*data).map_.b.round(1)
    array([-0.9])
    """

    def __init__(
        self,
        divergence: Literal["kl", "mmd"] = "kl",
        map: Literal["location-scale", "affine"] = "location-scale",
        *,
        k_X: Any = None,
        h_X: float | None = None,
        k_Z: Any = None,
        h_Z: float | None = None,
        K_X: int = 20,
        K_Z: int = 8,
        rounds: int = 2,
        F: float = 1.0,
        epochs: int = 5,
        learning_rate: float = 0.001,
        weight_decay: float = 0.0001,
        patience: int = 3,
        start: Literal["identity", "location-scale"] = "identity",
        steps: int | None = None,
        published: bool = False,
        reference: Any = None,
        categorical: Any = None,
        missing: checks.Missing = "raise",
        warn_overlap: float = 0.4,
        min_overlap: float = 0.05,
        n_jobs: int | None = None,
        verbose: bool = False,
        random_state: int | None = None,
    ) -> None:
        # stored as given, as scikit-learn wants it
        self.divergence = divergence  # type: ignore[assignment]
        self.map, self.reference, self.categorical = map, reference, categorical
        self.k_X, self.h_X, self.k_Z, self.h_Z = k_X, h_X, k_Z, h_Z
        self.K_X, self.K_Z, self.rounds, self.F = K_X, K_Z, rounds, F
        self.epochs, self.learning_rate, self.weight_decay = epochs, learning_rate, weight_decay
        self.patience, self.start, self.steps = patience, start, steps
        self.published, self.missing = published, missing
        self.warn_overlap, self.min_overlap = warn_overlap, min_overlap
        self.n_jobs, self.verbose, self.random_state = n_jobs, verbose, random_state

    def _ingredients(self, domains: Study) -> dict[str, Any]:
        check_word("'divergence'", self.divergence, ("kl", "mmd"))
        by_numbers, is_mmd = bool(domains.continuous), self.divergence == "mmd"
        self._check_used(domains)
        check_integer("K_X", self.K_X, 2)
        check_integer("rounds", self.rounds, 1)
        check_share(self.F)
        divergence: Any = PaperKL(self.start, self.steps, self.published)
        if self.published:
            divergence = PaperKL("location-scale", 10, True)
        if is_mmd:
            divergence = self._minibatches()
        found = {"map": self.map, "divergence": divergence, "shrinkage": None, "controls": None}
        found |= {"prior": "product", "conditional": "auto"}
        if domains.confounders:
            found["prior"] = PaperPrior(self._kernel(domains), self.published)
        if by_numbers:
            found["conditional"] = Chained(
                self.K_X,
                self.rounds,
                fraction=1.0 if is_mmd else self.F,
                random_state=check_seed(self.random_state),
            )
        return found

    def _kernel(self, domains: Study) -> Any:
        """Return the kernel on confounders; None for the RBF kernel with Silverman's width."""
        if self.h_Z is None:
            return self.k_Z
        check_number("h_Z", self.h_Z, 1e-300)
        if self.k_Z is not None:
            raise ValueError("'h_Z' is the width of the RBF kernel; leave it out beside 'k_Z'.")
        return GaussianKernel(self.h_Z, [c.is_number for c in domains.confounders])

    def _check_used(self, domains: Study) -> None:
        """Raise an error for settings without effect, or with which nothing was published."""
        by_numbers, is_mmd = bool(domains.continuous), self.divergence == "mmd"
        newton = not is_mmd and self.map == "affine"
        known = "numbers" if by_numbers else "categories" if domains.confounders else "nothing"
        where = f"ConDo({self.divergence!r}, {self.map!r}) given {known}"
        used = {"start", "steps"} if newton else set()
        used |= set(_OF_MINIBATCHES) if is_mmd else set()
        used |= {"K_X", "rounds", "F", "h_Z"} if by_numbers else set()
        used |= {"k_Z"} if domains.confounders else set()
        settings = (*_OF_MINIBATCHES, "k_Z", "h_Z", "rounds", "start", "steps")
        if name := self._changed(tuple(name for name in settings if name not in used)):
            raise ValueError(f"'{name}' is not used by {where}. Leave it out.")
        self._refuse_unpublished(settings)
        if self.published and self.F != 1 and not is_mmd:
            raise ValueError("The published numbers of 'kl' use no other 'F'. Leave it out.")
        if self.published and by_numbers and self.map == "affine":
            raise ValueError(
                "No affine map given continuous confounders was published. Use "
                "map='location-scale', or published=False."
            )


class OTBaseline(_PaperAdapter):
    """The paper's first baseline: optimal transport between two Gaussians.

    Parameters
    ----------
    map : {"location-scale", "affine"}, default="location-scale"
        Diagonal or full matrices.
    reference, missing, n_jobs, verbose
        As in `ConDoAdapter`.

    Examples
    --------
    >>> import numpy as np
    >>> from condokit.paper import OTBaseline
    >>> X = np.arange(6.0)[:, None]
    >>> OTBaseline().fit_pair(X, 2 * X + 5).transform(X).round(6).ravel()
    array([ 5.,  7.,  9., 11., 13., 15.])
    """

    prior: Any = "product"
    divergence: Any = "ot"
    is_baseline = True

    def __init__(
        self,
        map: Literal["location-scale", "affine"] = "location-scale",
        *,
        reference: Any = None,
        missing: checks.Missing = "raise",
        n_jobs: int | None = None,
        verbose: bool = False,
    ) -> None:
        self.map, self.reference, self.missing = map, reference, missing
        self.n_jobs, self.verbose = n_jobs, verbose

    def _ingredients(self, domains: Study) -> dict[str, Any]:
        return _PLAIN | {"map": self.map, "divergence": PaperOT()}


class MMDBaseline(_PaperAdapter):
    """The paper's second baseline: maximum mean discrepancy by stochastic gradient descent.

    Parameters
    ----------
    map : {"location-scale", "affine"}, default="location-scale"
        Diagonal or full matrices.
    k_X, h_X, K_X, K_Z, F, epochs, learning_rate, weight_decay, patience, published
        As in `ConDo`; a minibatch has `K_Z` pairs of sets of `K_X` rows each.
    reference, missing, n_jobs, verbose, random_state
        As in `ConDoAdapter`.

    Examples
    --------
    >>> from condokit import datasets
    >>> from condokit.paper import MMDBaseline
    >>> p = datasets.make_categorical1d(50, random_state=0)
    >>> MMDBaseline(epochs=2).fit_pair(p.X_query, p.X_reference).report_.n_iter
    14
    """

    prior: Any = "product"
    divergence: Any = "mmd"
    is_baseline = True

    def __init__(
        self,
        map: Literal["location-scale", "affine"] = "location-scale",
        *,
        k_X: Any = None,
        h_X: float | None = None,
        K_X: int = 20,
        K_Z: int = 8,
        F: float = 1.0,
        epochs: int = 5,
        learning_rate: float = 0.001,
        weight_decay: float = 0.0001,
        patience: int = 3,
        published: bool = False,
        reference: Any = None,
        missing: checks.Missing = "raise",
        n_jobs: int | None = None,
        verbose: bool = False,
        random_state: int | None = None,
    ) -> None:
        self.map, self.reference, self.missing = map, reference, missing
        self.n_jobs, self.verbose, self.random_state = n_jobs, verbose, random_state
        self.k_X, self.h_X, self.K_X, self.K_Z, self.F = k_X, h_X, K_X, K_Z, F
        self.epochs, self.learning_rate, self.weight_decay = epochs, learning_rate, weight_decay
        self.patience, self.published = patience, published

    def _ingredients(self, domains: Study) -> dict[str, Any]:
        self._refuse_unpublished(_OF_MINIBATCHES)
        return _PLAIN | {"map": self.map, "divergence": self._minibatches()}


_PLAIN = dict[str, Any](shrinkage=None, controls=None, prior="product", conditional="auto")
_PLAIN |= {"warn_overlap": 0.0, "min_overlap": 0.0, "random_state": None}
