"""Exceptions and warnings of condokit, how their sentences are made, and checks of arguments."""

import difflib
import logging
import shlex
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from string import Formatter
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
T = TypeVar("T")
# names that arguments take, so that type checkers find wrong ones
_Matrix = Literal["affine", "orthogonal", "similarity", "low-rank"]
MapName = Literal["auto", "identity", "shift", "location-scale", "monotone", _Matrix]
_Gaussian = Literal["reverse-kl", "forward-kl", "likelihood", "ot", "pc-match"]
DivergenceName = Literal["auto", _Gaussian, "mmd", "energy"]
PriorName = Literal["product", "paper", "overlap"]
ConditionalName = Literal["auto", "stratified", "kernel", "splines", "chained"]
Shrinkage = float | Literal["auto"] | None
Missing = Literal["raise", "drop", "impute"]
# The largest size of a value that is fitted, and the smallest spread that is not taken for rounding
# of a constant: fourth powers of values over 2 ** 53 rows, and squares of the ratio of two spreads,
# are numbers in double precision.
LARGEST, SMALLEST = 1e50, 1e-50
LEAST_WEIGHT = 1e-12  # rows with a smaller weight count as excluded
_notes: "ContextVar[list[Note] | None]" = ContextVar("notes", default=None)
_is_quiet: ContextVar[bool] = ContextVar("is_quiet", default=False)
LOG = logging.getLogger("condokit")  # all warnings are logged as well
LOG.addHandler(logging.NullHandler())
_naming: ContextVar[Callable[[str], str]] = ContextVar("naming", default=str)


class NoOverlapError(ValueError):
    """No confounder value occurs in both domains, so there is nothing to compare.

    Examples
    --------
    >>> from condokit import ConDoAdapter, NoOverlapError
    >>> X = [[1.0], [2.0], [3.0]]
    >>> try:
    ...     ConDoAdapter().fit_pair(X, X, ["F", "F", "F"], ["M", "M", "M"])
    ... except NoOverlapError as error:
    ...     print(str(error).splitlines()[0])
    confounder 'confounder 0' has no level in both domains.
    """


class MapFileError(ValueError):
    """A file is not a map that this version of condokit can read.

    Examples
    --------
    >>> import io
    >>> from condokit import MapFileError, load_map
    >>> try:
    ...     load_map(io.BytesIO(b"{}"))
    ... except MapFileError as error:
    ...     print(error)
    The map is not a map: its 'format' is not 'condokit-map'.
    """


class FileError(ValueError):
    """A file cannot be read or written; the message says why in one line.

    Examples
    --------
    >>> from condokit import FileError
    >>> from condokit.io import read_table
    >>> try:
    ...     read_table("nowhere.csv")
    ... except FileError as error:
    ...     print(error)
    nowhere.csv does not exist.
    """


class NeedsRows(ValueError):
    """Single rows are needed, but they are not in memory, or only sums over rows are known.

    Examples
    --------
    >>> from condokit import ConDoAdapter, NeedsRows, Statistics
    >>> parts = [Statistics.of([[1.0], [2.0], [3.0]], label=label) for label in ("new", "old")]
    >>> try:
    ...     ConDoAdapter("monotone", reference="old").fit_statistics(parts)
    ... except NeedsRows as error:
    ...     print(str(error).partition(".")[0])
    This needs single rows, which statistics do not contain
    """


class Sentence(str):
    """The text of an error, a warning or a finding, which names arguments as its reader does.

    The string itself is for Python users. `str()` and f-strings make the text for the present
    reader, who may be a user of the command line, where arguments are options; see `naming`. In
    the template, ``{name}`` is a field, ``{n:rows}`` a number of rows, ``{f:names}`` a list of
    features, and ``{@map='shift'}`` or ``{@`features`}`` an argument.
    """

    template: str
    fields: dict[str, Any]
    code: str  # what kind of message it is, for programs

    def __new__(cls, template: str, fields: dict[str, Any], code: str = "") -> "Sentence":
        """Make the text for Python users, and keep the template and its fields."""
        self = super().__new__(cls, _Words(str, whole).vformat(template, (), fields))
        self.template, self.fields, self.code = template, fields, code
        return self

    def in_words(
        self, naming: Callable[[str], str] = str, rows: Callable[[Any], str] | None = None
    ) -> str:
        """Return the text; `naming` translates arguments, `rows` formats numbers of rows."""
        return _Words(naming, rows or whole).vformat(self.template, (), self.fields)

    def __str__(self) -> str:
        return self.in_words(_naming.get())

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __reduce__(self) -> tuple[Any, ...]:
        return Sentence, (self.template, self.fields, self.code)


class _Words(Formatter):
    """Formats a template for one kind of reader."""

    def __init__(self, naming: Callable[[str], str], rows: Callable[[Any], str]) -> None:
        self.naming, self.rows = naming, rows

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> tuple[Any, str]:
        if field_name.startswith("@"):
            return self.naming(field_name[1:]), ""
        return kwargs[field_name], ""

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec == "rows":
            return self.rows(value)
        if format_spec == "names":  # after an argument, to be typed as it stands
            typed = f" {self.naming('features')} ".join(map(shlex.quote, value))
            return repr(list(value)) if self.naming is str else typed
        if isinstance(value, Sentence):
            value = value.in_words(self.naming, self.rows)
        return str(format(value, format_spec))


def whole(count: Any) -> str:
    """Return a number of rows, or of weights, as text."""
    return str(count) if isinstance(count, int | np.integer) else f"{count:g}"


def said(template: str, **fields: Any) -> Sentence:
    """Return a sentence that names arguments as its reader does; see `Sentence`."""
    return Sentence(template, fields)


def refusal(template: str, **fields: Any) -> ValueError:
    """Return a ValueError for invalid input of the user; see `Sentence` for the template."""
    return ValueError(Sentence(template, fields))


def needs_rows(template: str, **fields: Any) -> NeedsRows:
    """Return the error that single rows are needed; see `Sentence` for the template."""
    return NeedsRows(Sentence(template, fields))


@contextmanager
def within(variable: ContextVar[Any], value: T) -> Iterator[T]:
    """Give a variable a value within the block."""
    before = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(before)


def naming(names: Callable[[str], str]) -> AbstractContextManager[Any]:
    """Translate the names of arguments in all sentences that are made within the block."""
    return within(_naming, names)


class _Coded(UserWarning):
    """A warning whose code and fields programs can read."""

    @property
    def code(self) -> str:
        """What kind of warning it is."""
        return getattr(self.args[0], "code", "")

    @property
    def fields(self) -> dict[str, Any]:
        """The names and figures in its text."""
        return getattr(self.args[0], "fields", {})


class LowOverlapWarning(_Coded):
    """Only a part of the data carries the comparison of the domains.

    Its `code` says what kind of warning it is, and `fields` holds the figures.

    Examples
    --------
    >>> import warnings
    >>> import numpy as np
    >>> from condokit import ConDoAdapter, LowOverlapWarning
    >>> X, sex = np.arange(100.0)[:, None], [["F"] * 90 + ["M"] * 10, ["F"] * 10 + ["M"] * 90]
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always", LowOverlapWarning)
    ...     _ = ConDoAdapter().fit_pair(X, X, *sex)
    >>> caught[0].message.code
    'low-overlap'
    """


class IdentifiabilityWarning(_Coded):
    """The data do not determine a part of the map, which is then kept simple.

    Its `code` says what kind of warning it is, and `fields` holds the figures.

    Examples
    --------
    >>> import warnings
    >>> import numpy as np
    >>> from condokit import ConDoAdapter, IdentifiabilityWarning
    >>> X = np.column_stack([np.arange(20.0), np.full(20, 7.0)])  # the second never changes
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always", IdentifiabilityWarning)
    ...     _ = ConDoAdapter().fit_pair(X, X)
    >>> print(caught[0].message)
    Constant or nearly so within strata in a domain, so only shifted: 'column 1'.
    """


@dataclass(frozen=True)
class Note:
    """A warning that is kept in the record of a fit."""

    category: str
    sentence: Sentence


def noting(notes: list[Note] | None = None) -> AbstractContextManager[list[Note]]:
    """Collect condokit's warnings in a list, also those that the user's filters do not show.

    They are appended to `notes`, if given.
    """
    return within(_notes, [] if notes is None else notes)


@contextmanager
def quietly() -> Iterator[None]:
    """Suppress warnings within the block: they are neither shown nor collected."""
    with within(_is_quiet, True), noting(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def warn(
    code: str,
    template: str,
    category: type[Warning] = IdentifiabilityWarning,
    noted: str | None = None,
    **fields: Any,
) -> None:
    """Warn, with the line of the user's code as the place of the warning.

    `noted` is another template for the record of the fit, if the text may not be kept as it is.
    """
    sentence = Sentence(template, fields, code)
    notes, kept = _notes.get(), sentence if noted is None else Sentence(noted, fields, code)
    if notes is not None:
        notes.append(Note(category.__name__, kept))
    level, frame = 1, sys._getframe()
    ours = ("condokit", "sklearn")  # scikit-learn wraps `transform`
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(ours):
        level, frame = level + 1, frame.f_back
    warning: Any = category(sentence)
    warning.kept = kept
    if not _is_quiet.get():
        LOG.warning("%s", sentence, extra={"code": code, "category": category.__name__})
    warnings.warn(warning, stacklevel=level)


def repeated(items: Iterable[T]) -> list[T]:
    """Return the items that occur more than once."""
    return [item for item, times in Counter(items).items() if times > 1]


def listing(items: Iterable[Any], most: int = 5) -> str:
    """Return the first few items as text: ``'a', 'b', 'c' and 7 more``."""
    items = list(items)
    shown = ", ".join(repr(item) for item in items[:most])
    return f"{shown} and {len(items) - most} more" if len(items) > most else shown


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """Return a hint naming the nearest known spelling, or an empty string."""
    spelling = {str(k).casefold(): k for k in known}
    close = difflib.get_close_matches(str(name).casefold(), spelling, n=1)
    return f" Did you mean {spelling[close[0]]!r}?" if close else ""


def pick(argument: str, value: Any, named: Mapping[str, Any], base: type) -> Any:
    """Return an instance of an ingredient, given its name or an instance; else raise an error."""
    if isinstance(value, base):
        return value
    if isinstance(value, str) and value in named:
        return named[value]()
    names = ", ".join(repr(name) for name in named)
    raise ValueError(
        f"'{argument}' must be one of {names} or an instance of {base.__name__}. "
        f"Got {value!r} instead.{did_you_mean(value, named)}"
    )


def unknown_columns(
    argument: str, missing: Sequence[Any], known: Sequence[Any], table: str = "X"
) -> ValueError:
    """Return the error for names that are not columns of the table."""
    hints = "".join(did_you_mean(name, known) for name in missing[:3])
    return refusal(
        f"{{@'{argument}'}} names {{missing}}, which {{table}} does not have. Its columns are "
        "{known}.{hints}",
        table=table,
        missing=listing(missing),
        known=listing(known, 10),
        hints=hints,
    )


def check_word(argument: str, value: Any, known: Sequence[str]) -> None:
    """Raise an error if a parameter is none of the known words."""
    if value not in known:
        *others, last = (repr(word) for word in known)
        known = f"{', '.join(others)} or {last}"
        raise ValueError(f"{argument} must be {known}. Got {value!r} instead.")


def is_number(value: Any, kinds: Any = (int, float, np.number)) -> bool:
    """Return whether a value is a number; booleans are not."""
    return isinstance(value, kinds) and not isinstance(value, bool)


def check_number(
    argument: str, value: Any, low: float, high: float = np.inf, what: str = "number"
) -> None:
    """Raise an error if a parameter is no number (`what`: or "whole number") within a range."""
    kinds = (int, np.integer) if what == "whole number" else (int, float, np.number)
    if not is_number(value, kinds) or not low <= value <= high:
        span = f"from {low:g} to {high:g}" if np.isfinite(high) else f"of at least {low:g}"
        text = f"{{@'{argument}'}} must be a {what} {span}. Got {{value!r}} instead."
        raise refusal(text, value=value)


def check_integer(argument: str, value: Any, low: int) -> None:
    """Raise an error if a parameter is no whole number of at least `low`."""
    check_number(argument, value, low, what="whole number")


def check_seed(random_state: Any) -> int:
    """Return a seed, 0 for None; raise an error if it is no whole number from 0 up."""
    seed = 0 if random_state is None else random_state
    check_integer("random_state", seed, 0)
    return int(seed)


def require_domain(domain: Any) -> None:
    """Raise an error if the domain of rows is not given."""
    if domain is None:
        raise ValueError(
            "'domain' is required: an array with the domain label of each row, or the name of the "
            "column that holds it. For two separate tables use fit_pair."
        )


def check_length(argument: str, values: Any, n_rows: int, table: str) -> None:
    """Raise an error if an argument does not have one entry per row."""
    if len(values) != n_rows:
        raise ValueError(
            f"'{argument}' has {len(values)} entries but {table} has {n_rows} rows; "
            "one entry per row is needed."
        )


def are_moderate(X: Array) -> bool:
    """Return whether no value is missing, infinite or too large to compute with."""
    return X.size == 0 or bool(float(X.min()) >= -LARGEST and float(X.max()) <= LARGEST)


def sizes(X: Array) -> Array:
    """Return the largest absolute value of every column, 0 where no value is known."""
    return np.fmax.reduce(np.abs(X), axis=0, initial=0.0)


def refuse_extremes(table: str, labels: Sequence[str], size: Array, largest: float) -> None:
    """Raise an error for columns with infinite values, or with values above `largest`."""
    infinite = [label for label, n in zip(labels, size) if n == np.inf]
    if infinite:
        text = "{table} contains infinity, in {bad}. Correct these values, set them to NaN if "
        text += "they are unknown, or leave the columns out with {@`features`}."
        raise refusal(text, table=table, bad=listing(infinite))
    huge = [label for label, n in zip(labels, size) if n > largest]
    if huge:
        text = "{table} has values of up to {most:.3g}, in {bad}, which are too large to compute "
        text += "with (the limit is {largest:g}). Rescale these columns, for example to multiples "
        text += "of {unit:.0e}; set values to NaN if they mark unknown ones; or leave the columns "
        text += "out with {@`features`}."
        most = float(np.max(size))
        fields = {"bad": listing(huge), "unit": 10.0 ** np.floor(np.log10(most))}
        raise refusal(text, table=table, most=most, largest=largest, **fields)


def check_weights(weights: Any, n_rows: int, table: str) -> Array:
    """Return sample weights as non-negative finite float64, one per row."""
    try:
        weights = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise refusal("{@'sample_weight'} must hold numbers: {why}.", why=error) from None
    if weights.ndim == 0:
        weights = np.full(n_rows, float(weights))
    if weights.ndim != 1:
        raise refusal(
            "Sample weights must be 1D array or scalar: {@'sample_weight'} has the shape {shape}.",
            shape=weights.shape,
        )
    check_length("sample_weight", weights, n_rows, table)
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise refusal("{@'sample_weight'} must be finite and not negative.")
    if weights.max(initial=0.0) > 1 << 53 or weights.sum() > 1 << 53:
        raise refusal("{@'sample_weight'} counts rows, but adds up to more than 2 ** 53.")
    return np.where(weights < LEAST_WEIGHT, 0.0, weights)
