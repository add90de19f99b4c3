"""Which columns are features if none are named: numbers that are not labels or codes."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from condokit.checks import Array, listing, refusal, said, warn
from condokit.data.columns import factorize
from condokit.data.study import Study
from condokit.data.subsets import subsample
from condokit.data.tables import Table

# A column is no feature if its name contains a word of the first list, or only words of the second.
_LABEL_WORDS = (
    "id ids uid uuid guid mrn age ages date dates datetime timestamp dob birthdate birthday year "
    "code codes barcode zip zipcode postcode subjectid patientid sampleid unnamed"
)
_LABEL_ONLY_WORDS = (
    "index row sample subject subjects patient participant donor person user name no nr num number "
    "label labels target class month day week hour time sex gender"
)
# A column names subjects if its name has a word of the first list, and all words are in the two.
_SUBJECT_WORDS = (
    "subject subjects patient patients participant donor person individual animal volunteer id "
)
_SUBJECT_WORDS += "ids uid uuid guid mrn subjectid patientid sampleid sample"
_BESIDE_SUBJECT_WORDS = "no nr num number code codes name label study unique record"
_NUMBERED = re.compile(r"(\D*)(\d{1,15})(?:\.0)?")
_WORDS = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
_BY_NAME, _DATES, _NO_NUMBER = "by its name", "dates", "not a number"
CODES, _IDENTIFIERS = "whole numbers with few values", "another whole number in every row"
FEW_LEVELS = (
    "The confounder {names} has few distinct whole numbers and is taken as continuous. If they are "
    "codes of categories, {@list it in `categorical`}; if not, {@pass it as float}."
)
REPEATED = (
    "Values of {names} occur in several rows, which are treated as independent. If they identify "
    "subjects or samples that were measured several times, name the column in {@`groups`}{linking}."
)
LINKING = ", or in {@`bridge`} if some were measured in several batches"
MULTIPLIED = (
    "A change of device usually multiplies counts, which is a shift of their logarithms: use "
    "{@links such as 'log'}, or map log(1 + x) where there are zeros."
)
COUNTS = "These features look like counts: {names}. " + MULTIPLIED
_FEW_VALUES = 10  # distinct values of codes, at most
_FEW_ROWS = 10  # in fewer rows, codes and identifiers cannot be recognised
_MOST_VALUES = 1_000_000  # values that are examined,
_ENOUGH_ROWS = 1000  # or this many rows if that is more
_FEWEST_SUBJECTS = 10  # subjects that a column must have
_REPEATED = 0.05  # share of subjects with several rows,
_FEWEST_LINKS = 3  # or subjects with rows in several domains, if the name says what they are
_MOST_NAMED = 100_000  # rows that are searched for subjects if a column's name suggests them,
_MOST_UNNAMED = 5000  # and if only its values could
_LARGEST_CODE = 2.0**64  # no identifier has more bits; all larger doubles are whole numbers
_FEWEST_SPREAD = 30  # rows from which the distribution of whole numbers is judged
_WIDE_STEPS = 5  # median step between neighbours below which numbers look consecutive
_MOST_COUNTED = 200_000  # values that are examined for counts
_SKEWED = 1.0  # skewness above which counts are better mapped as logarithms


def measurements(
    tables: Sequence[Table], free: Sequence[str], site: Array
) -> tuple[list[str], dict[str, str]]:
    """Return the features among columns without a role, and why the others are none.

    `site` is the number of the domain of every row. It is refused to guess if no column remains, or
    if at least as many columns as remain look like codes or identifiers by their values.
    """
    left = {name: _NO_NUMBER for name in free if not all(t.is_number(name) for t in tables)}
    numbers = [name for name in free if name not in left]
    if numbers:
        domains = Study(tuple(table.select(numbers) for table in tables), site, [])
        left |= {numbers[j]: why for j, why in _by_values(domains, site).items()}
        left |= {name: _BY_NAME for name in numbers if looks_like_a_label(name)}
    taken = [name for name in numbers if name not in left]
    doubtful = [name for name, why in left.items() if why in (CODES, _IDENTIFIERS)]
    if left and (not taken or len(doubtful) >= len(taken)):
        text = "It is not clear which columns are features. These look like something else: {left}."
        text += " Name the features: {@features=}{names:names}, or {@features=}{every:names} for "
        known = {"left": reasons_in_words(left), "every": ["*"]}
        raise refusal(text + "all columns.", names=(taken or numbers or list(free))[:20], **known)
    return taken, {name: left[name] for name in free if name in left}


def look_like_counts(X: Array) -> Array:
    """Mark features that may be counts: whole numbers from 0 or 1 up, with a long upper tail."""
    are_counts = ((np.rint(X) == X) | np.isnan(X)).all(axis=0) & ~(X < 0).any(axis=0)
    for j in np.flatnonzero(are_counts):
        x = X[~np.isnan(X[:, j]), j]
        are_counts[j] = len(np.unique(x)) > _FEW_VALUES and x.min() <= 1
        if are_counts[j]:
            are_counts[j] = ((x - x.mean()) ** 3).mean() > _SKEWED * x.std() ** 3
    return are_counts


def counts_among(study: Study) -> list[str]:
    """Return features that look like counts in some of the rows."""
    if not study.is_whole or study.is_rectangular:
        return []
    kept = np.flatnonzero(study.kept())
    most = min(_ENOUGH_ROWS, max(_FEW_ROWS, _MOST_COUNTED // max(study.n_features, 1)))
    rows = kept[subsample(len(kept), most)]
    if len(rows) < _FEW_ROWS:
        return []
    return study.tables[0].names_of(look_like_counts(study.rows(rows)))


def repeated_subjects(study: Study) -> list[str]:
    """Return columns without a role that look like subjects with several rows.

    They are recognised by name, or as text that occurs at most once in a domain and often in
    several domains. Rows of bridge samples are ignored.
    """
    if study.groups is not None or not study.is_whole:
        return []
    rows, found = np.flatnonzero(study.kept() & (study.bridge < 0)), []
    rows = rows[subsample(len(rows), _MOST_NAMED)]
    for name in study.unused:
        words = {*words_of(name)}
        by_name = words & {*_SUBJECT_WORDS.split()} and words <= {
            *_SUBJECT_WORDS.split(),
            *_BESIDE_SUBJECT_WORDS.split(),
        }
        columns = [table.column("X", name) for table in study.tables]
        if not by_name and (len(rows) > _MOST_UNNAMED or columns[0].dtype.is_numeric()):
            continue
        values, code = factorize(columns, name, allow_missing=True)
        code, where = code[rows], study.code[rows]
        size = np.bincount(code[code >= 0], minlength=len(values))
        text = all(isinstance(value, str) and value[:1].isalpha() for value in values)
        pairs = np.unique(np.column_stack([code, where])[code >= 0], axis=0)
        linking = (np.bincount(pairs[:, 0]) > 1).sum() if by_name and text else 0
        is_rare = (size > 1).sum() < _REPEATED * (size > 0).sum() and linking < _FEWEST_LINKS
        if (size > 0).sum() < _FEWEST_SUBJECTS or is_rare:
            continue
        known = np.where(code < 0, np.nan, code)
        if not by_name and not (text and looks_like(known, where) == _IDENTIFIERS):
            continue
        if not _numbers_restart(values, code, where):
            found.append(name)
    return found


def names_of_rows(study: Study, *columns: Any) -> Sequence[Any] | None:
    """Return names of rows: from columns, the index, or a column whose name says so."""
    table, index = study.tables[0], getattr(study.tables[0].native, "index", None)
    known = [name for name in columns if isinstance(name, str) and name in table.described]
    if not known and index is not None and type(index).__name__ != "RangeIndex":
        return None if callable(index) else index
    known += [name for name in study.unused if {*words_of(name)} & {*_SUBJECT_WORDS.split()}]
    if not known:
        return None
    values = table.column("X", known[0]).to_list()
    return [k if str(v) in ("", "nan", "None") else v for k, v in enumerate(values)]


def _numbers_restart(values: Sequence[Any], code: Array, site: Array) -> bool:
    """Return whether values number the rows of each domain from 1 (or another first number).

    Such values are row numbers, not subjects.
    """
    parts = [_NUMBERED.fullmatch(str(value)) for value in values]
    if not all(parts) or len({part[1] for part in parts if part}) > 1:
        return False
    numbers = np.array([float(part[2]) for part in parts if part])
    ends = []
    for b in np.unique(site):
        own = np.sort(numbers[code[(site == b) & (code >= 0)]])
        if not len(own) or (np.diff(own) != 1).any():
            return False
        ends.append((own[0], own[-1]))
    starts, lasts = zip(*ends)
    return len(set(starts)) == 1 and len(set(lasts)) > 1


def warn_of_columns(domains: Study, linked: bool) -> None:
    """Warn of columns that are not taken as features, or that may be codes, subjects or counts."""
    if names := repeated_subjects(domains):
        linking = said(LINKING) if domains.n_domains > 2 else ""
        warn("repeated-subjects", REPEATED, names=listing(names), linking=linking)
    if not linked and (names := counts_among(domains)):
        warn("counts", COUNTS, UserWarning, names=listing(names))
    if domains.left:
        text = "Not taken as features: {left}. If some of them are, name all in {@`features`}."
        warn("not-features", text, UserWarning, left=reasons_in_words(domains.left))
    if few := [c.name for c in domains.continuous if c.may_be_codes]:
        warn("few-levels", FEW_LEVELS, UserWarning, names=listing(few))


def reasons_in_words(left: Mapping[str, str]) -> str:
    """List the columns that are not features, grouped by reason."""
    by_reason: dict[str, list[str]] = {}
    for name, why in left.items():
        by_reason.setdefault(why, []).append(name)
    return "; ".join(f"{listing(names, 10)} ({why})" for why, names in by_reason.items())


def looks_like_a_label(name: str) -> bool:
    """Return whether a column's name is that of an identifier, date, age, code or label."""
    words = set(words_of(name))
    return bool(
        words & {*_LABEL_WORDS.split()} or (words and words <= {*_LABEL_ONLY_WORDS.split()})
    )


def words_of(name: str) -> list[str]:
    """Return the words of a name in lower case, without numbers."""
    return [word.lower() for word in _WORDS.split(name) if word and not word.isdecimal()]


def _by_values(domains: Study, site: Array) -> dict[int, str]:
    """Return the features whose values look like dates, codes or identifiers, and as which."""
    whole = np.arange(domains.n_features)
    for _, chunk in domains.chunks():
        part = chunk[:, whole]
        is_whole = (part == np.rint(part)) & (np.abs(part) <= _LARGEST_CODE)
        whole = whole[(is_whole | ~np.isfinite(part)).all(axis=0)]
        if not len(whole):
            return {}
    n_rows = len(domains.is_query)
    used = subsample(n_rows, max(_ENOUGH_ROWS, _MOST_VALUES // len(whole)))
    columns = domains.of(whole).rows(used).T
    found = {int(j): looks_like(x, site[used]) for j, x in zip(whole, columns)}
    return {j: why for j, why in found.items() if why}


def looks_like(x: Array, site: Array) -> str:
    """Return what whole numbers look like, such as codes or dates; "" if they may be measured."""
    known = np.isfinite(x)
    values = np.unique(x[known])
    year, month, day = values // 10_000, values // 100 % 100, values % 100
    is_date = (year >= 1900) & (year <= 2100) & (month >= 1) & (month <= 12) & (day >= 1)
    if len(values) and (is_date & (day <= 31)).all():
        return _DATES
    if known.sum() < _FEW_ROWS:
        return ""
    if 1 < len(values) <= min(_FEW_VALUES, known.sum() / 3):
        return CODES
    if 2 * len(values) < known.sum():
        return ""
    # the identifier of a subject that is in several domains occurs once in each
    distinct = len(np.unique(np.column_stack([x, site])[known], axis=0))
    if distinct < known.sum() or _are_measured(x[known], values, site[known]):
        return ""
    return _IDENTIFIERS


def _are_measured(x: Array, values: Array, site: Array) -> bool:
    """Return whether distinct whole numbers are distributed as measurements are.

    Identifiers are consecutive, or uniform within a domain; the kurtosis of n uniform values is 1.8
    on average, and below 1.8 + 6 / sqrt(n) in 99 of 100 cases. That of measurements is about 3.
    """
    if len(x) < _FEWEST_SPREAD or np.median(np.diff(values)) < _WIDE_STEPS:
        return False
    parts = (x[site == b] for b in np.unique(site))
    z = np.concatenate([(part - part.mean()) / (part.std() or 1.0) for part in parts])
    return bool(np.mean(z**4) > 1.8 + 6 / np.sqrt(len(z)))
