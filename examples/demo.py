"""Adapt a new EEG device to the old one, and look at two models that cannot be retrained.

Run as ``python examples/demo.py OUTPUT_FOLDER``. Device V1 was worn mostly by healthy people, V2
mostly by people with seizures: matching the two devices' data would erase that difference.
"""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import compute, csv
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from condokit import ConDoAdapter, datasets, report


def frozen_model(X, y):
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(X, y)


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    eeg = datasets.make_eeg(random_state=0)
    table = eeg.to_frame("pyarrow")  # pandas, polars and NumPy work as well

    adapter = ConDoAdapter(reference="v1").fit(
        table, domain="device", confounders=["seizure"], features=["eeg_*"]
    )
    matching = ConDoAdapter(shrinkage=None).fit_pair(eeg.X_query, eeg.X_reference)

    new = table.filter(compute.equal(table["device"], "v2"))
    seizure = frozen_model(eeg.X_reference, eeg.seizure_reference)
    depression = frozen_model(eeg.X_reference, eeg.depression_reference)
    versions = {
        "as recorded by V2": eeg.X_query,
        "plain moment matching": matching.transform(eeg.X_query),
        "condokit": np.column_stack(adapter.transform(new).columns),
        "(V1 on the same people)": eeg.truth,
    }

    print(
        f"{len(eeg.X_query)} people on the new device V2 ({eeg.seizure_query.mean():.0%} seizures)"
    )
    print(
        f"{len(eeg.X_reference)} people on the old V1 ({eeg.seizure_reference.mean():.0%} seizures)"
    )
    print("Two models were trained on V1 and stay as they are. Applied to the V2 people:\n")
    print(f"{'':25}{'error':>8}{'seizure':>11}{'depression':>13}")
    print(f"{'':25}{'rMSE':>8}{'accuracy':>11}{'accuracy':>13}")
    for name, X in versions.items():
        error = np.sqrt(np.mean((X - eeg.truth) ** 2))
        right = [
            accuracy_score(truth, model.predict(X))
            for model, truth in (
                (seizure, eeg.seizure_query),
                (depression, eeg.depression_query),
            )
        ]
        print(f"{name:25}{error:8.3f}{right[0]:11.1%}{right[1]:13.1%}")
    print(f"\nCompared given the confounder:\n{adapter.support_}\n")

    adapter.map_.save(folder / "v2_to_v1.json")
    labels = table.select(["device", "seizure", "depression"])
    adapted = adapter.transform(table, domain="device")
    names = [*labels.column_names, *adapted.column_names]
    both = pa.table([*labels.columns, *adapted.columns], names)
    csv.write_csv(both, folder / "adapted.csv", csv.WriteOptions(quoting_style="needed"))
    roles = {"domain": "device", "confounders": ["seizure"], "features": ["eeg_*"]}
    report.save(folder / "report.html", adapter, table, **roles, force=True)
    print(
        f"Wrote {folder}/v2_to_v1.json (the map), {folder}/adapted.csv (both devices in V1 units)\n"
        f"and {folder}/report.html (open it in a browser)."
    )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output"))
