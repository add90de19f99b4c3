"""Files that somebody changed: of every kind, thousands, each with a hash that fits again.

Every one must be read or refused by our own error, within 2 seconds and 200 MB, and what is read
can be used. A test does some of them; all: `python tests/mutations.py 2000` prints what was found.
Time and memory are those of reading and use together: processor time, so that other programs do
not matter, and in a second go the peak of what Python and NumPy allocate, by `tracemalloc`.
"""

import argparse
import contextlib
import copy
import io
import json
import random
import sys
import time
import traceback
import tracemalloc
import warnings
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from condokit import (
    AffineMap,
    BatchAdapter,
    ConDoAdapter,
    FileError,
    MapFileError,
    MonotoneMap,
    Statistics,
    load_map,
)
from condokit.cli import main
from condokit.io.documents import digest
from condokit.maps.profile import Profile

KINDS = ("map", "batches", "statistics")
MOST_SECONDS, MOST_BYTES = 2.0, 200e6
_GUARD = 2 << 30  # bytes of addresses beyond which Python raises a MemoryError


# valid files


def document_of(saved, **how):
    """Return what `save` writes."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        saved.save(file, **how)
    return json.loads(file.getvalue())


def _maps():
    from condokit import datasets

    rng, names = np.random.default_rng(0), list("abcd")
    profile = Profile.of(np.exp(rng.normal(size=(200, 4))), 200)
    facts = {
        "versions": {"condokit": "1.0"},
        "adapter": {"map": "auto", "min_overlap": 0.05},
        "domains": {"query": "new", "reference": "old", "column": "device"},
        "rows": {"query": "~100", "reference": 200},
        "fitted_as_normal": ["a"],
        "warnings": ["LowOverlapWarning: few"],
    }
    origin, vector = {"fitted_on": profile, "provenance": facts}, rng.normal(size=4)
    links = ["log", 0.5, None, "logit"]
    yield AffineMap(np.exp(vector), vector, names, links=links, **origin)
    yield AffineMap(vector, vector)
    yield AffineMap(rng.normal(size=(4, 4)), vector, names, **origin)
    yield AffineMap(rng.normal(size=(2, 4)), vector[:2], names, output_names=["u", "v"])
    factors = {"left": rng.normal(size=(4, 2)), "right": rng.normal(size=(4, 2))}
    yield AffineMap(vector, vector, names, **factors, **origin)
    knots, values = (np.cumsum(rng.uniform(0.1, 1, size=(4, 6)), axis=1) for _ in range(2))
    yield MonotoneMap(knots, values, None, names, links=links, **origin)
    yield MonotoneMap(knots, values, output_names=list("efgh"))
    eeg = datasets.make_eeg(60, 60, random_state=0).to_frame()
    roles = {"domain": "device", "confounders": ["seizure"], "features": ["*F3", "*F4"]}
    yield ConDoAdapter(reference="v1").fit(eeg, **roles).map_


def _batches():
    from batches_made import Made

    made = Made(1, [(0, 1), (1, 2), (2, 3)], p=3)
    roles = {"batch": "site", "confounders": ["group"], "features": made.features}
    yield BatchAdapter(reference="A").fit(made.table, **roles)
    yield BatchAdapter(reference="consensus").fit(made.table, **roles)
    code = made.code * 1.5
    by_place = {"batch": code, "confounders": made.table["group"].to_numpy(), "features": [0, 2]}
    yield BatchAdapter(reference=0.0, joint=False).fit(made.X, **by_place)


def _sites():
    from sites_made import FEATURES, hospital

    rng = np.random.default_rng(0)
    for label, other in ("AB", "BA"):
        table, few = hospital(label), FEATURES[:2]
        table["age"] = rng.uniform(20, 90, len(table))
        table["wbc"] = (table["wbc"] > 1).astype(float)
        ages = {"ranges": {"age": (18, 95)}, "label": label, "features": few}
        yield Statistics.of(table, label=label, confounders=["sex", "ward"], features=FEATURES)
        gaps = table.mask(rng.random(table.shape) < 0.05)[FEATURES]
        sex = {"confounders": {"sex": table["sex"].to_numpy()}, "reference": other}
        weights = 1.0 + rng.integers(0, 3, len(table))
        yield Statistics.of(gaps, label=label, sample_weight=weights, **sex)
        yield Statistics.of(table, label=label, features=FEATURES, given=["crp"])
        yield Statistics.of(table, confounders=["sex", "age"], **ages)
        for name in few:
            table.loc[rng.random(len(table)) < 0.1, name] = np.nan
        yield Statistics.of(table, confounders=["age"], given=few[:1], **ages)


@cache
def originals(kind):
    """Return documents of a kind; of statistics, the second half can be merged with the first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = {"map": _maps, "batches": _batches, "statistics": _sites}[kind]()
        return [document_of(one) for one in made]


# what is done to them

STRANGE = [
    *(None, True, False, 0, 1, -1, 2, 0.5, -0.0, 1e-320, 1e308, -1e308, 1e154, 1e75, 5e-324),
    *(3000, 10**9, 2**31, 2**53 + 1, 2**63, 2**64, 10**30, 10**290, -(10**9)),
    *("", "x", "NaN", "Infinity", "1", "log", "A", "consensus", "batches", "dense", "\ud800"),
    *("=1+1", "a\nb", "{0}", "%s", "x" * 5000, "\u202e", "\x00"),
    *([], {}, [[]], [None], [{}], {"a": 1}, [1, 2], [[1.0]], ["a", "a"], [True], [[[[[[[[1]]]]]]]]),
]
CLAIMS = [0, -1, 1, 2, 3000, 10**6, 10**9, 2**53, 2**63]


def places(value, path=(), kind=()):
    """Yield all that is in a document: what holds it, its key, and its path without numbers."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(items):
        here = (*kind, "" if isinstance(key, int) else key)
        if path or key not in ("sha256", "format"):
            yield value, key, here
        if isinstance(item, dict | list):
            yield from places(item, (*path, key), here)


def somewhere(document, chance, wanted=lambda value: True):
    """Return what holds something, and its key: by chance among fields, not among entries."""
    fields = {}
    for holder, key, kind in places(document):
        if wanted(holder[key]):
            fields.setdefault(kind, []).append((holder, key))
    return chance.choice(fields[chance.choice(sorted(fields))])


def is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def changed_number(value, chance):
    """Return something near a number, or far from it."""
    if chance.random() < 0.5:
        return value * chance.uniform(0.5, 1.5) if isinstance(value, float) else value + 1
    factor = chance.choice([-1, 0, 2, 0.5, 1 + 1e-9, 1e-30, 1e30, 1e150, -1e60, float(10**9)])
    choices = [value * factor, value + 1, value - 1, -value, chance.uniform(-2, 2)]
    found = chance.choice([*choices, *choices, str(value), [value], bool(value), *CLAIMS])
    return found if not isinstance(found, float) or np.isfinite(found) else 1e999


def mutate(document, others, chance):
    """Change something, anywhere."""
    how = chance.random()
    if how < 0.35:
        holder, key = somewhere(document, chance, is_number)
        holder[key] = changed_number(holder[key], chance)
        return
    holder, key = somewhere(document, chance)
    value = holder[key]
    if how < 0.5:
        holder[key] = copy.deepcopy(chance.choice(STRANGE))
    elif how < 0.6:
        del holder[key]
    elif how < 0.65 and isinstance(value, list):  # all numbers in it
        for inner, k, _ in list(places(value, "x")):
            if is_number(inner[k]):
                inner[k] *= chance.choice([-1, 0, 2.0, 1e-30, 1e30])
    elif how < 0.75 and isinstance(value, list) and value:
        change = chance.choice(["twice", "shuffle", "reverse", "cut", "many"])
        if change == "twice":
            value.insert(0, copy.deepcopy(chance.choice(value)))
        elif change == "shuffle":
            chance.shuffle(value)
        elif change == "reverse":
            value.reverse()
        elif change == "cut":
            del value[chance.randrange(len(value)) :]
        else:
            value += [copy.deepcopy(value[0])] * chance.choice([10, 1000])
    elif how < 0.9:  # what is elsewhere in this file, or in another of its kind
        other, place = somewhere(copy.deepcopy(chance.choice([document, *others])), chance)
        holder[key] = other[place]
    elif how < 0.95:
        holder[key] = [value] if chance.random() < 0.5 else {"a": value}
    else:
        size = [(inner, k) for inner, k, kind in places(document) if kind[-1] in SIZES]
        holder, key = chance.choice(size or [(holder, key)])
        holder[key] = chance.choice(CLAIMS)


SIZES = ("n_features", "n_knots", "n_columns", "feature", "min_cell", "fewest_rows", "n_rows")
SIZES += ("largest_weight", "count", "columns")


def mutated_bytes(text, chance):
    """Flip, cut out, repeat or insert bytes, or cut the file."""
    text = bytearray(text)
    kind = chance.choice(["flip", "cut", "truncate", "repeat", "insert", "digits"])
    i, j = sorted(chance.randrange(len(text)) for _ in range(2))
    if kind == "flip":
        for _ in range(chance.randint(1, 4)):
            text[chance.randrange(len(text))] ^= 1 << chance.randrange(8)
    elif kind == "cut":
        del text[i : min(j, i + 30)]
    elif kind == "truncate":
        del text[i:]
    elif kind == "repeat":
        text[i:i] = text[i : min(j, i + 100)]
    elif kind == "digits":
        digits = [k for k, byte in enumerate(text) if chr(byte).isdigit()]
        text[chance.choice(digits)] = ord(chance.choice("0123456789e-."))
    else:
        odd = [b"NaN", b"1e999", b"[", b"{", b'"', b"\x00", b"\xff", b"-", b",", b"[" * 5000]
        text[i:i] = chance.choice(odd)
    return bytes(text)


def with_hash(document):
    """Return a document as an attacker writes it, with a hash that fits."""
    body = {key: value for key, value in document.items() if key != "sha256"}
    with contextlib.suppress(ValueError):  # such as for half a character
        body["sha256"] = digest(body)
    return json.dumps(body).replace("Infinity", "1e999").encode()


def mutation(kind, number, seed=0):
    """Return a file of a kind that somebody changed: the same for the same numbers."""
    chance = random.Random(f"{kind} {seed} {number}")
    documents = originals(kind)
    document = copy.deepcopy(chance.choice(documents))
    if chance.random() < 0.15:
        text = mutated_bytes(json.dumps(document).encode(), chance)
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(text)
            if chance.random() < 0.7 and isinstance(found, dict):
                text = with_hash(found)
        return text
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        mutate(document, documents, chance)
    return with_hash(document) if chance.random() < 0.95 else json.dumps(document).encode()


# whether they are read, and can be used


def shown(text):
    """Return the exit code of `condokit show`, and what it says."""
    out, err, before = io.StringIO(), io.StringIO(), sys.stdin
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(text)), encoding="utf-8")
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main(["show", "-"])
    except SystemExit as done:
        return done.code, out.getvalue(), err.getvalue()
    finally:
        sys.stdin = before


def refused(read, text, error):
    """Return what is read, or None if it is refused as it must be: by our error, in one line."""
    try:
        return read(io.BytesIO(text))
    except error as found:
        assert type(found) is error, repr(found)
        assert "\n" not in str(found), found
        assert len(str(found)) < 1000, found
        return None


def allowed(function, *arguments, **more):
    """Call something that may refuse with a message of ours, and return what it returns."""
    try:
        return function(*arguments, **more)
    except ValueError as error:
        assert not isinstance(error, np.linalg.LinAlgError), error
        assert str(error), "no message"
        return None


def use_map(text):
    """Read a map and use it; return whether it was read."""
    found = refused(load_map, text, MapFileError)
    if found is None:
        return False
    assert repr(found)
    rng, d = np.random.default_rng(0), found.n_features_in_
    for X in (rng.normal(size=(5, d)), rng.uniform(0.1, 0.9, size=(5, d)), np.full((2, d), np.nan)):
        mapped = allowed(found, X)
        assert mapped is None or (np.isfinite(mapped) | np.isnan(X).any()).all()
        assert repr(allowed(found.check, X))
    back = allowed(found.inverse)
    if back is not None:
        allowed(back, rng.normal(size=(3, d)))
    assert load_map(io.BytesIO(json.dumps(document_of(found)).encode())) == found
    return True


def use_batches(text):
    """Read maps of batches and use them; return whether they were read."""
    found = refused(BatchAdapter.load, text, MapFileError)
    if found is None:
        return False
    assert repr(found)
    assert str(found.report_)
    labels, d = list(found.maps_), next(iter(found.maps_.values())).n_features_in_
    X = np.random.default_rng(0).uniform(0.1, 0.9, size=(len(labels), d))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # these rows have no names
        for function in (found.transform, found.inverse_transform):
            mapped = allowed(function, X, batch=np.array(labels, dtype=object))
            assert mapped is None or np.isfinite(mapped).all()
        assert len(found.get_feature_names_out()) == d
    again = BatchAdapter.load(io.BytesIO(json.dumps(document_of(found)).encode()))
    assert again.maps_ == found.maps_
    return True


def use_statistics(text):
    """Read statistics, merge them with others and fit; return whether they were read."""
    found = refused(Statistics.load, text, FileError)
    if found is None:
        return False
    assert repr(found)
    for other in others():
        both = allowed(found.merge, other)
        if both is not None and len(both.labels) > 1:
            for adapter in (ConDoAdapter(reference="A"), BatchAdapter(reference="A")):
                fitted = allowed(adapter.fit_statistics, both)
                maps = {} if fitted is None else getattr(fitted, "maps_", {0: fitted})
                for one in maps.values():
                    one = getattr(one, "map_", one)
                    assert np.isfinite(one.scale).all()
                    assert np.isfinite(one.offset).all()
            break
    allowed(document_of, found)
    return True


@cache
def others():
    """Return statistics that others can be merged with."""
    documents = originals("statistics")
    texts = [with_hash(one) for one in documents]
    return [Statistics.load(io.BytesIO(text)) for text in texts[len(texts) // 2 :] + texts]


USES = {"map": use_map, "batches": use_batches, "statistics": use_statistics}


def checked(kind, text):
    """Return whether a file was read; an AssertionError says what is wrong."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", RuntimeWarning)  # of NumPy
        was_read = USES[kind](text)
        code, out, err = shown(text)
    assert code == (0 if was_read else 2), (code, err)
    assert out if was_read else len(err.splitlines()) == 1, err
    return was_read


class Outcome(NamedTuple):
    """What became of a file."""

    was_read: bool
    fault: str  # what went wrong, if anything
    seconds: float
    size: int  # bytes


def measured(kind, number, seed, with_memory=True):
    """Try a file, and again for its memory."""
    text, was_read, fault = mutation(kind, number, seed), False, ""
    start = time.process_time()
    try:
        was_read = checked(kind, text)
        seconds = time.process_time() - start
        if with_memory:
            tracemalloc.start()
            checked(kind, text)
    except Exception as error:
        seconds = time.process_time() - start
        where = traceback.extract_tb(error.__traceback__)
        ours = [f for f in where if "/condokit/" in f.filename][-1:] or where[-1:]
        said = f"{type(error).__name__}: {str(error)[:150]}"
        fault = f"{said} ({ours[0].filename.rpartition('/condokit/')[2]}:{ours[0].lineno})"
    size = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    if seconds > MOST_SECONDS or size > MOST_BYTES:
        fault = fault or f"took {seconds:.1f} s and {size / 1e6:.0f} MB"
    return Outcome(was_read, fault, seconds, size)


def run(kind, n, seed=0, first=0):
    """Try many files of a kind, and print what was found; return how many went wrong."""
    import resource  # which Windows does not have

    originals(kind)
    for document in originals(kind):
        assert checked(kind, with_hash(document)), "a valid file is not read"
    limit = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _GUARD, limit[1]))
    found = {number: measured(kind, number, seed) for number in range(first, first + n)}
    resource.setrlimit(resource.RLIMIT_AS, limit)
    faults = {number: one.fault for number, one in found.items() if one.fault}
    slowest = max(found, key=lambda k: found[k].seconds)
    largest = max(found, key=lambda k: found[k].size)
    n_read = sum(one.was_read for one in found.values())
    print(f"{kind}: {n} files, {n_read} read, {n - n_read} refused, {len(faults)} wrong")
    print(
        f"  slowest {found[slowest].seconds:.2f} s (number {slowest}), median "
        f"{np.median([one.seconds for one in found.values()]):.3f} s; "
        f"largest {found[largest].size / 1e6:.1f} MB (number {largest})"
    )
    for fault, times in Counter(faults.values()).most_common():
        number = next(k for k, one in faults.items() if one == fault)
        print(f"  {times} x number {number}: {fault}")
    return len(faults)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("n", type=int, nargs="?", default=2000, help="files of each kind")
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    options = parser.parse_args()
    how = options.n, options.seed, options.first
    sys.exit(sum(run(kind, *how) for kind in options.kind or KINDS) > 0)
