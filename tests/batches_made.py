"""Studies of many batches with a known answer."""

import numpy as np
import pandas as pd


class Made:
    """A study: its table, and the values that its rows would have in the reference, A."""

    def __init__(self, seed, levels, n=60, p=12, noise="normal", age=0.0, effect=1.0):
        rng = np.random.default_rng(seed)
        K = len(levels)
        code = np.repeat(np.arange(K), n)
        level = np.concatenate([rng.choice(choices, n) for choices in levels])
        mean = (effect * rng.normal(size=(1 + max(map(max, levels)), p)))[level]
        years = rng.normal(size=K * n) + age * np.linspace(-1, 1, K)[code]
        mean = mean + np.outer(years, rng.normal(size=p)) * (age > 0)
        e = rng.standard_t(3, (K * n, p)) if noise == "t" else rng.normal(size=(K * n, p))
        self.scale = np.exp(0.2 * rng.normal(size=(K, p)))
        self.offset = rng.normal(size=(K, p))
        self.scale[0], self.offset[0] = 1.0, 0.0
        self.truth = mean + e
        self.X = (self.truth - self.offset[code]) / self.scale[code]
        self.code, self.features = code, [f"f{j}" for j in range(p)]
        self.labels = list("ABCDEFGHIJKL"[:K])
        self.table = pd.DataFrame(self.X, columns=self.features)
        self.table["site"] = np.array(self.labels)[code]
        self.table["group"] = [f"g{k}" for k in level]
        self.table["years"] = years

    def error(self, mapped, batches=None):
        """Return the root mean square error of rows that are not of the reference."""
        rows = self.code > 0 if batches is None else np.isin(self.code, batches)
        return float(np.sqrt(np.mean((np.asarray(mapped) - self.truth)[rows] ** 2)))
