import shutil

import pytest

from condokit import datasets


@pytest.fixture(scope="session")
def eeg():
    """Few people: the verdict of a fit is looked for among all of them, 200 times."""
    return datasets.make_eeg(100, 120, random_state=0)


@pytest.fixture(scope="session")
def written(eeg, tmp_path_factory):
    folder = tmp_path_factory.mktemp("eeg")
    frame = eeg.to_frame()
    frame["person"] = [f"p{i}" for i in range(len(frame))]
    frame.to_csv(folder / "all.csv", index=False)
    for label, name in (("v2", "new"), ("v1", "old")):
        part = frame[frame["device"] == label].drop(columns="device")
        part.to_csv(folder / f"{name}.csv", index=False)
        part.to_parquet(folder / f"{name}.parquet", index=False)
    return folder


@pytest.fixture
def files(written, tmp_path):
    return shutil.copytree(written, tmp_path, dirs_exist_ok=True)
