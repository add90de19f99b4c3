"""BatchAdapter: one frozen map for every batch of a study."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from condokit.adapter import ConDoAdapter
from condokit.batches.addition import add
from condokit.batches.estimate import estimate, identity, is_joint, towards_centre, with_expected
from condokit.batches.file import adapter_of, content_of
from condokit.batches.graph import Graph
from condokit.batches.plan import Plan, make_plan
from condokit.batches.record import BatchReport, account_of_batches, facts_of
from condokit.checks import Array, Note, check_number, check_word, listing, noting, refusal
from condokit.compare.weak_points import batch_weak_points
from condokit.data.arrays import computing
from condokit.data.blocks import Blocks
from condokit.data.measurements import warn_of_columns
from condokit.data.reader import read
from condokit.data.roles import Roles, batch_of_rows, recalled, remembered
from condokit.data.study import Study
from condokit.data.tables import Table
from condokit.fit.estimator import Adapter, how_read
from condokit.io import documents
from condokit.io.documents import Place
from condokit.maps import file as mapfile
from condokit.maps.base import Map
from condokit.maps.lazily import map_lazily_by
from condokit.maps.profile import Check, check, profile
from condokit.maps.standard_errors import StandardErrors
from condokit.statistics.domains import as_study
from condokit.statistics.gather import Statistics

_PROFILED = 50_000_000  # values times batches up to which maps keep a profile of their data


class BatchAdapter(Adapter):
    """Make many batches comparable with one of them, given their confounders.

    Every batch gets a fixed map of its own. Applying it needs the features and the label of the
    batch only. Batches are compared by what they have in common: confounder values, or samples that
    were measured in several of them (`bridge`). A batch that has nothing in common with the
    reference is compared along a path of other batches. If there is no path, an error names the
    batch.

    Parameters
    ----------
    adapter : ConDoAdapter or None, default=None
        The settings of the maps: family, divergence, missing confounders, limits of overlap. None
        is `ConDoAdapter()`.
    reference : label, "auto" or "consensus", default=None
        The batch to map to. "auto" chooses the one to which all others have the best paths;
        "consensus" maps all batches to their centre, weighted by rows. Not needed if a batch is
        called "reference".
    joint : "auto", True or False, default="auto"
        Whether the maps of all batches are estimated together, by one law of features given
        confounders, or pair by pair along the best paths. "auto" is together if maps are diagonal
        and the divergence is the likelihood, and if there are more than two batches or bridges.
    unreachable : {"raise", "keep"}, default="raise"
        What to do with batches without a path to the reference: raise an error, or keep them
        unchanged.
    n_jobs, random_state : int or None, default=None
        Passed on to the adapter.

    Attributes
    ----------
    maps_ : dict
        The map of every batch by its label; that of the reference is the identity.
    reference_ : label
        The batch to which all are mapped, or "consensus".
    graph_ : list of dict
        Pairs of batches with their overlap, number of bridges, expected error, and whether they
        can be compared.
    paths_ : dict
        For every batch the list of labels from it to the reference.
    errors_ : dict
        Standard errors of the maps (`StandardErrors`) by label; None where they are unknown.
    report_ : BatchReport
        A table of all batches with their expected errors before and after; print it.

    See Also
    --------
    ConDoAdapter : The map between two domains.
    anndata.adapt : Map the batches of an AnnData.

    Examples
    --------
    Batch C is off by 3; how far the others are off is chance.

    >>> import numpy as np
    >>> from condokit import BatchAdapter
    >>> rng = np.random.default_rng(0)
    >>> batch, sex = np.repeat(["A", "B", "C"], 200), rng.integers(0, 2, 600).astype(str)
    >>> X = rng.normal(size=(600, 1)) + (sex == "1")[:, None] + 3 * (batch == "C")[:, None]
    >>> adapter = BatchAdapter(reference="A").fit(X, batch=batch, confounders=sex)
    >>> bool(abs(adapter.maps_["C"]([[3.0]])[0, 0]) < 0.3)
    True
    >>> print(adapter.report_)
    batch              rows  overlap  bridges  before   after  path
    A                   200     1.00        0    0.00    0.00  A
    B                   200     ...
    """

    provenance_: Mapping[str, Any]  # how the maps came about

    def __init__(
        self,
        adapter: ConDoAdapter | None = None,
        *,
        reference: Any = None,
        joint: Any = "auto",
        unreachable: str = "raise",
        n_jobs: int | None = None,
        random_state: int | None = None,
    ) -> None:
        self.adapter, self.reference, self.joint = adapter, reference, joint
        self.unreachable, self.n_jobs, self.random_state = unreachable, n_jobs, random_state

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        batch: Any,
        confounders: Any = None,
        features: Any = None,
        groups: Any = None,
        sample_weight: Any = None,
        bridge: Any = None,
    ) -> "BatchAdapter":
        """Learn one map for every batch.

        Parameters
        ----------
        X : array, pandas or polars DataFrame, pyarrow Table or AnnData of shape (n_rows, n_columns)
            Rows of all batches.
        y : ignored
            Exists for compatibility with scikit-learn.
        batch : array-like of shape (n_rows,) or str
            The batch of each row, or the name of the column of X that holds it.
        confounders, features, groups, sample_weight
            As in `ConDoAdapter.fit`. `features="common"` takes the columns that have values in
            every batch.
        bridge : array-like of shape (n_rows,) or str, default=None
            Samples measured in several batches: rows with the same value are the same sample, and
            rows with a missing value are no such samples. Bridge samples need no confounders.
            Without any confounders, the maps are learned from bridge samples only.

        Returns
        -------
        BatchAdapter
            The fitted adapter itself.
        """
        self.fit_study(self.read(X, batch, confounders, features, groups, sample_weight, bridge))
        given = {"confounders": confounders, "groups": groups, "sample_weight": sample_weight}
        self._roles = remembered(batch=batch, bridge=bridge, **given)
        if isinstance(batch, str):
            self.provenance_ = {**self.provenance_, "column": batch}
        return self

    def read(self, X: Any, *roles: Any, **others: Any) -> Study:
        """Read a table of many batches as `fit` does; arguments are those of `Roles`."""
        how: Any = how_read(self.one_adapter()) | {"argument": "batch"}
        given = replace(Roles(*roles, **others), **how)
        common = _is_common(given.features)
        given = replace(given, features=None) if common else given
        return read(X, given).compared().with_known_features(common)

    def read_as_fitted(self, X: Any, *roles: Any) -> Study:
        """Read a table with the features of the maps; a `Study` is returned as it is.

        The roles are batch, confounders, groups, sample_weight and bridge, in this order. Roles
        that are None are those of the fit.
        """
        check_is_fitted(self)
        if isinstance(X, Study):
            return X
        names = ("batch", "confounders", "groups", "sample_weight", "bridge")
        given = recalled(getattr(self, "_roles", {}), dict(zip(names, roles)))
        return self._read_known(X, *given.values())

    def _read_known(self, X: Any, batch: Any, confounders: Any, *others: Any) -> Study:
        """Read a table with the features of the maps."""
        known = getattr(self, "feature_names_in_", None)
        chosen = self._columns if known is None else list(known)
        return X if isinstance(X, Study) else self.read(X, batch, confounders, chosen, *others)

    def one_adapter(self) -> ConDoAdapter:
        """Return an unfitted `ConDoAdapter` with the settings of the maps."""
        one: Any = ConDoAdapter() if self.adapter is None else self.adapter
        if not hasattr(one, "fit_domains"):
            raise ValueError(f"'adapter' must be a ConDoAdapter. Got {one!r}.")
        one = clone(one)
        if one.reference is not None:
            text = "'reference' of the adapter inside is {got!r}; give it to BatchAdapter instead."
            raise refusal(text, got=one.reference)
        if one.controls is not None:
            raise refusal("{@'controls'} work with two domains, in ConDoAdapter alone.")
        given = {"n_jobs": self.n_jobs, "random_state": self.random_state}
        return one.set_params(**{name: value for name, value in given.items() if value is not None})

    def graph(self, study: Study) -> tuple[Graph, int, dict[int, list[int]], str]:
        """Return the graph of batches, the reference, the paths to it, and why it is that batch."""
        check_word("'unreachable'", self.unreachable, ("raise", "keep"))
        least = self.one_adapter().min_overlap
        check_number("min_overlap", least, 0, 1)
        graph = Graph(study, least)
        reference, why = graph.reference(self.reference)
        return graph, reference, graph.paths(reference), why

    def fit_study(self, study: Study, notes: list[Note] | None = None) -> "BatchAdapter":
        """Learn the maps from a study that has been read already."""
        with noting(notes) as notes, computing("map"):
            one = self.one_adapter()
            warn_of_columns(study, getattr(one.map, "links", None) is not None)
            graph, reference, paths, why = self.graph(study)
            graph.refuse(paths, reference, self.unreachable == "keep")
            joint = is_joint(self.joint, one, study)
            for point in batch_weak_points(study) if joint and len(paths) > 2 else ():
                point.warn()
            found = estimate(study, one, reference, paths, joint)
            centred = self.reference == "consensus" and "consensus" not in study.labels
            if centred:
                found = towards_centre(found, study, graph)
            found = with_expected(found, study)
        small = len(study.code) * study.n_features * study.n_domains <= _PROFILED
        self.maps_ = {}
        for b, label in enumerate(study.labels):
            own = found.maps[b] if b in found.maps else identity(study)
            if small:
                own = own.with_origin(profile(study.divided(study.code == b), hidden=True))
            self.maps_[label] = own if own.errors else own.with_errors(found.errors.get(b))
        facts = facts_of(graph, paths, found.expected)
        lost = [label for label in study.labels if label not in facts]
        self.graph_, self.paths_ = graph.edges(), {k: known.path for k, known in facts.items()}
        self.reference_ = "consensus" if centred else study.labels[reference]
        self.report_ = BatchReport(self.reference_, why, joint, facts, lost, found.facts)
        self.provenance_ = account_of_batches(
            self.report_, one.get_params(deep=False), study, notes
        )
        self._keep_features(study.tables[0])
        return self

    @property
    def errors_(self) -> dict[Any, StandardErrors | None]:
        """Standard errors of the maps by label, None where they are not known."""
        return {label: one.errors for label, one in self.maps_.items()}

    @errors_.setter
    def errors_(self, errors: Mapping[Any, StandardErrors | None]) -> None:
        self.maps_ = {k: one.with_errors(errors[k]) for k, one in self.maps_.items()}

    def transform(self, X: Any, *, batch: Any, return_std: bool = False) -> Any:
        """Map the rows of every batch to the reference; no confounders are needed.

        Parameters
        ----------
        X, batch, return_std
            As in `ConDoAdapter.transform`, with the batch of each row in place of its domain. A
            label without a map raises an error.

        Returns
        -------
        array or data frame of shape (n_rows, n_features)
            The mapped features, as `ConDoAdapter.transform` returns them.
        """
        check_is_fitted(self)
        return self._transform(X, batch, return_std)

    def inverse_transform(self, X: Any, *, batch: Any) -> Any:
        """Map rows from the reference's units back to those of their batch.

        Parameters
        ----------
        X, batch
            As in `transform`, with rows as it returns them.

        Returns
        -------
        array or data frame of shape (n_rows, n_features)
            The features as the batches recorded them.
        """
        check_is_fitted(self)
        return self._apply(X, batch, {label: one.inverse() for label, one in self.maps_.items()})

    def fit_transform(self, X: Any, y: Any = None, *, batch: Any, **roles: Any) -> Any:
        """Fit, then map all rows.

        Parameters
        ----------
        X, y, batch, **roles
            As in `fit`.

        Returns
        -------
        array or data frame of shape (n_rows, n_features)
            The mapped features of all rows.
        """
        return self.fit(X, y, batch=batch, **roles).transform(X, batch=batch)

    def add_batch(
        self,
        X: Any,
        *,
        batch: Any,
        confounders: Any = None,
        features: Any = None,
        groups: Any = None,
        sample_weight: Any = None,
        bridge: Any = None,
    ) -> "BatchAdapter":
        """Learn the map of a new batch; all other maps stay as they are.

        Parameters
        ----------
        X : array or data frame of shape (n_rows, n_columns)
            Rows of the new batch, and of one or more batches that have a map. The latter are
            mapped to the reference first, and compared with the new batch.
        batch, confounders, features, groups, sample_weight, bridge
            As in `fit`. The features must be those of the maps, which are the default.

        Returns
        -------
        BatchAdapter
            The adapter itself, with one more map.

        Examples
        --------
        >>> import numpy as np
        >>> from condokit import BatchAdapter
        >>> rng = np.random.default_rng(0)
        >>> X, batch = rng.normal(size=(200, 1)), np.repeat(["A", "B"], 100)
        >>> adapter = BatchAdapter(reference="A").fit(X, batch=batch)
        >>> new = np.concatenate([X[:100], rng.normal(size=(100, 1)) + 5])
        >>> adapter.add_batch(new, batch=np.repeat(["A", "C"], 100)).paths_["C"]
        ['C', 'A']
        """
        check_is_fitted(self)
        if features is not None and not (isinstance(X, Study) or _is_common(features)):
            self._refuse_other_features(X, features)
        study = self._read_known(X, batch, confounders, groups, sample_weight, bridge)
        new = [b for b, label in enumerate(study.labels) if label not in self.maps_]
        if len(new) != 1 or study.n_domains < 2:
            text = "{@'batch'} must have one label that is new, beside known ones. New: {new}; "
            known = listing(list(self.maps_), 12)
            names = listing([study.labels[b] for b in new]) or "none"
            raise refusal(text + "known: {known}.", new=names, known=known)
        add(self, study, new[0])
        return self

    def _refuse_other_features(self, X: Any, features: Any) -> None:
        """Raise an error if features are not those of the maps."""
        by_place = range(self.n_features_in_) if self._columns is None else self._columns
        known, chosen = getattr(self, "feature_names_in_", by_place), Table(X).select(features)
        found: list[Any] = chosen.feature_names or [*chosen.positions]
        if sorted(found) != sorted(known):
            text = "{@'features'} are {found}, but the maps are of {known}. Leave it out, or fit "
            text += "all batches again."
            raise refusal(text, found=listing(found), known=listing(known))

    def check(self, X: Any, *, batch: Any) -> Check:
        """Check whether new rows look like the rows of their batch to which the map was fitted.

        Parameters
        ----------
        X, batch
            As in `transform`.

        Returns
        -------
        Check
            The same as of `AffineMap.check`, with the batch of every finding; print it.

        Examples
        --------
        >>> import numpy as np
        >>> from condokit import BatchAdapter
        >>> X, batch = np.random.default_rng(0).normal(size=(200, 1)), np.repeat(["A", "B"], 100)
        >>> adapter = BatchAdapter(reference="A").fit(X, batch=batch)
        >>> adapter.check(X, batch=batch).verdict, adapter.check(X + 9, batch=batch).verdict
        ('as fitted', 'look')
        """
        check_is_fitted(self)
        known = list(self.maps_)
        return check(self.maps_, X, lambda table: batch_of_rows(batch, table, known))

    def plan(
        self, X: Any, *, batch: Any, confounders: Any = None, n: int = 8, **roles: Any
    ) -> Plan:
        """Plan which samples to measure again in which batch, or which subjects to add.

        Parameters
        ----------
        X, batch, confounders
            As in `fit`; the adapter need not be fitted.
        n : int, default=8
            Number of samples that can be measured.
        **roles
            `features`, `groups`, `sample_weight` and `bridge`, as in `fit`.

        Returns
        -------
        Plan
            The samples, the batches, and the expected error before and after; print it.

        Examples
        --------
        Only men were measured in A, and only women in B:

        >>> import numpy as np
        >>> from condokit import BatchAdapter
        >>> X, batch = np.random.default_rng(0).normal(size=(40, 1)), np.repeat(["A", "B"], 20)
        >>> sex = np.where(batch == "A", "M", "F")
        >>> print(BatchAdapter(reference="A").plan(X, batch=batch, confounders=sex, n=2))
        Expected error of a value now: not known, some batches cannot be compared.
        Measuring 2 samples in another batch as well leaves an expected error of 0.50 sd.
          of A, also in B: 10, 18
        Adding new subjects instead leaves an expected error of 0.76 sd.
          1 in A: confounder 0 = F
          1 in B: confounder 0 = M
        """
        study = self.read(X, batch, confounders, **roles)
        return self.plan_study(study, n, roles.get("bridge"), roles.get("groups"))

    def plan_study(self, study: Study, n: int, *names: Any) -> Plan:
        """Make the plan for a `Study`; `names` are columns by which samples are named."""
        graph, reference, _, _ = self.graph(study)
        return make_plan(study, graph, reference, n, *names)

    kinds = ("batches",)  # values of "kind" in files that this class reads

    def save(self, path: Place, *, errors: bool | None = None) -> None:
        """Write all maps to one readable JSON file.

        Parameters
        ----------
        path : path or open file
            Where to write. The file is written completely or not at all.
        errors : bool or None, default=None
            Whether standard errors of the maps are written, as in `AffineMap.save`.
        """
        check_is_fitted(self)
        documents.write(path, self.to_dict(errors), mapfile.MAPS)

    def to_dict(self, errors: bool | None = None) -> dict[str, Any]:
        """Return the content of the file."""
        return content_of(self, errors)

    @classmethod
    def load(cls, path: Place) -> "BatchAdapter":
        """Read the maps that `save` wrote. They transform as before, and batches can be added.

        Parameters
        ----------
        path : path or open file
            The file.

        Returns
        -------
        BatchAdapter
            A fitted adapter.

        Examples
        --------
        >>> import io
        >>> import numpy as np
        >>> from condokit import BatchAdapter
        >>> X, batch = np.random.default_rng(0).normal(size=(40, 1)), np.repeat(["A", "B"], 20)
        >>> adapter, file = BatchAdapter(reference="A").fit(X, batch=batch), io.BytesIO()
        >>> adapter.save(file)
        >>> _ = file.seek(0)
        >>> BatchAdapter.load(file).maps_ == adapter.maps_
        True
        """
        found: BatchAdapter = mapfile.read(path, cls)
        return found

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "BatchAdapter":
        """Return the adapter with these fields of a file; raise a ValueError if they are wrong."""
        adapter: BatchAdapter = adapter_of(cls, content)
        return adapter

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "maps_")

    def _fit_statistics(self, statistics: Statistics, notes: list[Note]) -> "BatchAdapter":
        if len(statistics.labels) < 2:
            text = "The statistics have the label {only} alone; there is nothing to compare."
            raise refusal(text, only=listing(statistics.labels))
        return self.fit_study(as_study(statistics), notes)

    def _fitted(self) -> Mapping[Any, Map]:
        return self.maps_

    def _place(self, batch: Any, table: Table) -> tuple[Array, Array | None]:
        return batch_of_rows(batch, table, list(self.maps_)), None

    def _map_lazily(self, maps: Mapping[Any, Map], blocks: Blocks, batch: Any) -> Any:
        return map_lazily_by(maps, blocks, batch)


mapfile.CLASSES["batches"] = BatchAdapter


def _is_common(features: Any) -> bool:
    """Return whether features are those with values in every batch."""
    return isinstance(features, str) and features == "common"
