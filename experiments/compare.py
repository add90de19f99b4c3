"""Comparisons of methods over seeds, for the claims of the paper."""

import numpy as np


def of_the_paper(table):
    """Return the rows of the paper's own seeds, without the fresh ones."""
    return table[table["seed"] < 100]


def by_method(table, metric):
    """Return the means over the paper's seeds, methods in rows and scenarios in columns."""
    return of_the_paper(table).groupby(["method", "scenario"])[metric].mean().unstack()


def mean(table, scenario, method, metric):
    """Return the mean of a metric over seeds."""
    rows = table[(table["scenario"] == scenario) & (table["method"] == method)]
    return float(rows[metric].mean())


def gain(table, scenario, method, other, metric, best="low"):
    """Return by how much a method is better than another, with its standard error over seeds."""
    rows = table[table["scenario"] == scenario]
    wide = rows.pivot(index="seed", columns="method", values=metric)
    difference = (wide[method] - wide[other]) * (-1 if best == "low" else 1)
    return float(difference.mean()), float(difference.std() / np.sqrt(len(difference)))


def improves(table, scenario, method, other, metric, best="low"):
    """Tell whether a method is better by more than one standard error."""
    difference, error = gain(table, scenario, method, other, metric, best)
    return difference > error


def is_noninferior(table, scenario, method, other, metric, best="low"):
    """Tell whether a method is not worse by more than one standard error."""
    difference, error = gain(table, scenario, method, other, metric, best)
    return difference >= -error


def listed(table, scenario, metric, methods):
    """Write the means of several methods."""
    return ", ".join(f"{m} {mean(table, scenario, m, metric):.3f}" for m in methods)


def word(holds):
    """Say whether a claim holds."""
    return "holds" if holds else "does not hold"
