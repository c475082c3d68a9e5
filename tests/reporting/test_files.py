import numpy as np
import pandas as pd
import pytest

from implementations.errors import UserError
from implementations.reporting import files, make_claims, make_figures, make_tables
from implementations.reporting.files import DamagedTable, read_table, write_parquet
from tests.reporting import synthetic


@pytest.fixture
def frame():
    return pd.DataFrame(
        {
            "n": pd.array([1, None], "Int64"),
            "x": [0.5, np.nan],
            "s": ["a", None],
            "f": pd.array([True, None], "boolean"),
        }
    )


def test_a_table_is_what_pandas_reads_and_writes(tmp_path, frame):
    write_parquet(frame, tmp_path / "ours" / "a=1.parquet")
    frame.to_parquet(tmp_path / "theirs.parquet", index=False)
    for path in (tmp_path / "ours" / "a=1.parquet", tmp_path / "theirs.parquet"):
        pd.testing.assert_frame_equal(read_table(path), frame)
    pd.testing.assert_frame_equal(
        pd.read_parquet(tmp_path / "theirs.parquet"), read_table(str(tmp_path / "theirs.parquet"))
    )
    assert [path.name for path in (tmp_path / "ours").iterdir()] == ["a=1.parquet"]


def test_no_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"none\.parquet does not exist"):
        read_table(tmp_path / "none.parquet")


def test_every_cut_of_a_file_is_damage_told_in_one_line(tmp_path, frame):
    path = tmp_path / "t.parquet"
    write_parquet(frame, path)
    content = path.read_bytes()
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        with pytest.raises(DamagedTable) as caught:
            read_table(path)
        said = str(caught.value)
        assert said.startswith(f"{path} is damaged (") and said.endswith("); delete it and run again")
        assert "\n" not in said


def test_broken_bytes_raise_nothing_else(tmp_path, frame):
    path, draw = tmp_path / "t.parquet", np.random.default_rng(0)
    write_parquet(frame, path)
    content = np.frombuffer(path.read_bytes(), np.uint8)
    damaged = 0
    for _ in range(300):
        broken = content.copy()
        broken[draw.integers(4, len(content) - 8, size=8)] = draw.integers(0, 256, size=8)
        path.write_bytes(broken.tobytes())
        try:
            read_table(path)
        except DamagedTable:
            damaged += 1
    assert damaged > 100


@pytest.mark.parametrize("name", ["runs", "timings"])
@pytest.mark.parametrize("step", ["claims", "tables", "figures"])
def test_a_damaged_table_of_results_is_a_users_error(tmp_path, name, step):
    runs = synthetic.runs([synthetic.record()])
    paths = {"runs": tmp_path / "runs.parquet", "timings": tmp_path / "timings.parquet"}
    write_parquet(runs, paths["runs"])
    write_parquet(synthetic.timings(runs), paths["timings"])
    paths[name].write_bytes(paths[name].read_bytes()[:-9])
    steps = {
        "claims": lambda: make_claims(paths["runs"], paths["timings"], tmp_path / "claims.csv"),
        "tables": lambda: make_tables(paths["runs"], paths["timings"], None, tmp_path),
        "figures": lambda: make_figures(
            paths["runs"], paths["timings"], None, tmp_path, tmp_path / "figures"
        ),
    }
    with pytest.raises(UserError, match=rf"{name}\.parquet is damaged .*delete it and run again"):
        steps[step]()


def test_a_file_is_whole_or_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    files.write_whole(path, b"old")

    def killed(*paths):
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        files.write_whole(path, b"new")
    assert path.read_bytes() == b"old"
