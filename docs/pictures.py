"""Draw the picture of the first page and of README: the problem and the fix.

    python docs/pictures.py

One channel of the built-in example: people with and without seizures on an old and a new device.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import gaussian_kde

from condokit import ConDoAdapter, datasets

QUERY, REFERENCE = "#e07a1f", "#2a6fb0"
CHANNEL = 4


def main() -> None:
    """Write problem.png beside the style sheets."""
    eeg = datasets.make_eeg(n_query=2000, n_reference=2500, random_state=0)
    adapter = ConDoAdapter().fit_pair(
        eeg.X_query, eeg.X_reference, eeg.seizure_query, eeg.seizure_reference
    )
    matching = ConDoAdapter(shrinkage=None).fit_pair(eeg.X_query, eeg.X_reference)
    panels = {
        "As recorded:\nthe new device reads differently": eeg.X_query,
        "Distributions matched:\nboth groups end in the wrong place": matching.transform(
            eeg.X_query
        ),
        "Compared given the groups (condokit):\nonly the device is removed": adapter.transform(
            eeg.X_query
        ),
    }
    grid = np.linspace(-1.5, 9.5, 300)
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.3), sharey=True, layout="constrained")
    for axis, (title, X) in zip(axes, panels.items()):
        for ill in (False, True):
            old = eeg.X_reference[eeg.seizure_reference == ill, CHANNEL]
            new = X[eeg.seizure_query == ill, CHANNEL]
            height = gaussian_kde(old)(grid)
            axis.fill_between(grid, height, color=REFERENCE, alpha=0.28, lw=0)
            axis.plot(grid, height, color=REFERENCE, lw=1)
            axis.plot(grid, gaussian_kde(new)(grid), color=QUERY, lw=2, ls="--" if ill else "-")
        axis.set_title(title, fontsize=11)
        axis.set_yticks([])
        axis.set_xlabel("delta power, channel P3 (log units)")
        for side in ("left", "right", "top"):
            axis.spines[side].set_visible(False)
    line = plt.Line2D
    axes[0].legend(
        handles=[
            plt.Rectangle((0, 0), 1, 1, color=REFERENCE, alpha=0.4),
            line([], [], color=QUERY, lw=2),
            line([], [], color=QUERY, lw=2, ls="--"),
        ],
        labels=["old device, both groups", "new device, healthy", "new device, seizures"],
        frameon=False,
        fontsize=9,
        loc="upper right",
    )
    figure.savefig(Path(__file__).parent / "_static" / "problem.png", dpi=130)


if __name__ == "__main__":
    main()
