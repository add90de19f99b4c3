import pytest


@pytest.fixture
def files(eeg, tmp_path):
    frame = eeg.to_frame()
    frame["person"] = [f"p{i}" for i in range(len(frame))]
    frame.to_csv(tmp_path / "all.csv", index=False)
    for label, name in (("v2", "new"), ("v1", "old")):
        part = frame[frame["device"] == label].drop(columns="device")
        part.to_csv(tmp_path / f"{name}.csv", index=False)
        part.to_parquet(tmp_path / f"{name}.parquet", index=False)
    return tmp_path
