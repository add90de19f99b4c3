"""Simulated studies of several batches whose truth is known; each is a function of a seed.

In units of the standard deviation within a stratum, a value that the reference batch would have
shown is

    v = effect of the confounders (about 1, on half of the features) + correlated noise

and batch k shows (v - offset_k) / scale_k, with log scale_k ~ N(0.1 N(0, 1), s_k^2), s_k between
0.15 and 0.3, and offset_k ~ N(0.5 N(0, 1), 0.7^2) for every feature. So the map to the reference
is v = scale * x + offset. Batch "A" is the reference.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

FEATURES = 30
REFERENCE = "A"
REPEAT = 0.3  # sd of measuring a control again, within-stratum sd being 1


@dataclass
class Study:
    """Rows of several batches, what is known of them, and what is true."""

    X: np.ndarray
    batch: np.ndarray
    confounders: pd.DataFrame | None
    bridge: np.ndarray | None  # equal values are one sample; None is no control
    reference: str
    truth: np.ndarray  # each row as the reference batch would have shown it
    sd: np.ndarray  # of each feature within the strata of the reference

    def error(self, moved) -> float:
        """Return the root mean square of (moved - truth) / sd over the rows of other batches."""
        rows = self.batch != self.reference
        return float(np.sqrt(np.mean(((moved - self.truth)[rows] / self.sd) ** 2)))


def _labels(count):
    return np.array([chr(ord("A") + k) for k in range(count)])


def _noise(rng, n, tail):
    """Draw correlated noise of variance 1: three common factors and a part of its own."""
    load = rng.normal(size=(3, FEATURES))
    load *= np.sqrt(0.4 / (load**2).sum(0))
    if tail == "t3":
        common, own = (rng.standard_t(3, (n, k)) / np.sqrt(3) for k in (3, FEATURES))
    else:
        common, own = rng.normal(size=(n, 3)), rng.normal(size=(n, FEATURES))
    return common @ load + np.sqrt(0.6) * own


def _values(rng, level, age, tail, spreads):
    """Return values given the confounders, and the spread of every row."""
    n = len(level if level is not None else age)
    touched = rng.permutation(FEATURES) < FEATURES // 2
    spread = np.ones(n) if spreads is None else np.array(spreads)[level]
    values = _noise(rng, n, tail) * spread[:, None]
    if level is not None:
        values += (rng.normal(size=(level.max() + 1, FEATURES)) * touched)[level]
    if age is not None:
        values += np.outer((age - 50) / 12, rng.normal(size=FEATURES) * touched)
    return values, spread


def _observed(rng, values, batch):
    """Return the values as each batch shows them."""
    shown = values.copy()
    for label in np.unique(batch[batch != REFERENCE]):
        centre, spread = 0.1 * rng.normal(), rng.uniform(0.15, 0.3)
        scale = np.exp(centre + spread * rng.normal(size=FEATURES))
        offset = 0.5 * rng.normal() + 0.7 * rng.normal(size=FEATURES)
        rows = batch == label
        shown[rows] = (values[rows] - offset) / scale
    return shown


def _study(
    rng, batch, level=None, age=None, tail="normal", spreads=None, original=None, known=True
):
    """Return a study; rows with the same `original` (-1: none) are one sample measured again."""
    values, spread = _values(rng, level, age, tail, spreads)
    bridge = None
    if original is not None:
        control = original >= 0
        values[control] = values[original[control]]
        values[control] += REPEAT * rng.normal(size=(control.sum(), FEATURES))
        bridge = np.array([f"control {k}" if k >= 0 else None for k in original], dtype=object)
    columns = {} if level is None else {"group": np.array(list("uvwxyz"))[level]}
    columns |= {} if age is None else {"age": age}
    centre, unit = 3 * rng.normal(size=FEATURES), np.exp(0.5 * rng.normal(size=FEATURES))
    sd = unit * np.sqrt(np.mean(spread[batch == REFERENCE] ** 2))
    X, truth = centre + unit * _observed(rng, values, batch), centre + unit * values
    confounders = pd.DataFrame(columns) if known else None
    return Study(X, batch, confounders, bridge, REFERENCE, truth, sd)


def _levels(rng, batches, n, shares):
    """Draw three levels, whose shares every batch has in the order of a random turn."""
    turns = rng.permutation(np.arange(batches) % 3)
    return np.concatenate([rng.choice(3, n, p=np.roll(shares, turn)) for turn in turns])


def _ages(rng, batches, n):
    shifts = rng.permutation(np.linspace(-12, 12, batches))
    return np.concatenate([50 + shift + 8 * rng.normal(size=n) for shift in shifts])


STRONG = (0.75, 0.2, 0.05)


def balanced(seed):
    """Draw 5 batches of 60 rows with 20 of each group: no association."""
    rng = np.random.default_rng([1, seed])
    return _study(rng, np.repeat(_labels(5), 60), level=np.tile(np.arange(3), 100))


def unbalanced(seed, level=True, age=False, batches=5, n=60, shares=STRONG, **options):
    """Draw batches whose confounders differ strongly; by default one of three groups dominates."""
    rng = np.random.default_rng([2, seed])
    level = _levels(rng, batches, n, shares) if level else None
    age = _ages(rng, batches, n) if age else None
    return _study(rng, np.repeat(_labels(batches), n), level, age, **options)


def unbalanced_age(seed):
    """Draw 5 batches of 60 rows whose mean ages differ by up to three standard deviations."""
    return unbalanced(seed, level=False, age=True)


def unbalanced_both(seed):
    return unbalanced(seed, age=True)


def heavy_tails(seed):
    return unbalanced(seed, tail="t3")


def heavy_tails_both(seed):
    return unbalanced(seed, age=True, tail="t3")


def unequal_variances(seed):
    """Draw unbalanced groups whose standard deviations are 0.6, 1 and 1.6."""
    return unbalanced(seed, spreads=(0.6, 1.0, 1.6))


def chain(seed):
    """Draw batches A to D of 60 rows, each with two of five groups, one shared with the next."""
    rng = np.random.default_rng([3, seed])
    level = np.concatenate([np.repeat([k, k + 1], 30) for k in range(4)])
    return _study(rng, np.repeat(_labels(4), 60), level)


def tiny(seed):
    """Draw 10 batches of 20 rows."""
    return unbalanced(seed, batches=10, n=20, shares=(0.6, 0.3, 0.1))


def tiny_both(seed):
    return unbalanced(seed, age=True, batches=10, n=20, shares=(0.6, 0.3, 0.1))


def bridges(seed, neighbours=False, known=True):
    """Draw 5 batches of 60 rows, each of one group alone, and 8 controls measured again.

    The controls are rows of the reference that every batch repeats, or rows of the batch before.
    """
    rng = np.random.default_rng([4, seed])
    batch, level = np.repeat(_labels(5), 60), np.repeat(np.arange(5), 60)
    first = 60 * np.arange(4) if neighbours else np.zeros(4, int)
    again = (first[:, None] + np.arange(8)).ravel()
    original = np.full(len(batch), -1)
    original[again] = again
    batch = np.concatenate([batch, np.repeat(_labels(5)[1:], 8)])
    level, original = np.concatenate([level, level[again]]), np.concatenate([original, again])
    return _study(rng, batch, level, original=original, known=known)


def bridges_chain(seed):
    return bridges(seed, neighbours=True)


def bridges_unknown(seed):
    """Draw the same, but nothing is known of the groups."""
    return bridges(seed, known=False)


def bridges_chain_unknown(seed):
    return bridges(seed, neighbours=True, known=False)


STUDIES = {
    "balanced": balanced,
    "unbalanced groups": unbalanced,
    "unbalanced ages": unbalanced_age,
    "unbalanced groups and ages": unbalanced_both,
    "t3 noise, groups": heavy_tails,
    "t3 noise, groups and ages": heavy_tails_both,
    "unequal variances": unequal_variances,
    "chain of 3": chain,
    "10 x 20 rows, groups": tiny,
    "10 x 20 rows, groups and ages": tiny_both,
    "bridges": bridges,
    "bridges, chain": bridges_chain,
    "bridges, groups unknown": bridges_unknown,
    "bridges, chain, groups unknown": bridges_chain_unknown,
}
ASSOCIATED = [name for name in STUDIES if name != "balanced"]
