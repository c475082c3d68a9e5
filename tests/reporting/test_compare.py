"""Runs against a reference that is made up, so that every verdict is known."""

import json

import pandas as pd
import pytest
from scipy import stats

from implementations.__main__ import main
from implementations.errors import UserError
from implementations.record import columns
from implementations.reporting import compare
from implementations.reporting.files import write_parquet

POINT = {
    "method": "averaging", "model": "fc-8", "dataset": "digits", "workers": 4, "sync_period": 5,
    "evidence": "simulated", "status": "ok", "sent_bytes_total": 1200, "payload_bytes": 300, "messages": 8,
    "loss": 0.5, "host_wall_s": 2.0,
}  # fmt: skip
ACCURACIES = (0.90, 0.91, 0.92)


def run(seed, **changes):
    return POINT | {"run_id": f"r{seed}", "seed": seed, "accuracy": 0.9} | changes


REFERENCE = [run(seed, accuracy=value) for seed, value in enumerate(ACCURACIES)]


def judged(*runs, reference=REFERENCE):
    return compare.compare(runs, reference).set_index("run_id")


def test_the_same_run_has_the_same_bits():
    row = judged(REFERENCE[1] | {"host_wall_s": 3.0}).loc["r1"]
    assert (row["verdict"], row["matched"], row["reference_seeds"]) == ("same bits", "same point", 3)
    assert row["time_ratio"] == 1.5


def test_the_last_digit_counts():
    row = judged(REFERENCE[1] | {"loss": 0.5 + 1e-12}).loc["r1"]
    assert row["verdict"] == "within range"


def test_another_seed_is_held_against_the_range_of_seeds():
    """Three values 0.01 apart: t of 2 degrees of freedom times 0.01 times sqrt(4/3) to each side of 0.91."""
    reach = stats.t(2).ppf(0.975) * 0.01 * (4 / 3) ** 0.5
    for value, verdict in ((0.91 + 0.99 * reach, "within range"), (0.91 - 1.01 * reach, "differs")):
        row = judged(run(7, accuracy=value)).loc["r7"]
        assert (row["verdict"], row["matched"]) == (verdict, "other seed")
        assert row["reference_high"] == pytest.approx(0.91 + reach)


def test_one_seed_has_no_range_however_often_it_ran():
    repeats = [REFERENCE[0] | {"run_id": f"r0_{k}", "repeat": k} for k in range(3)]
    assert judged(run(7), reference=repeats).loc["r7", "verdict"] == "same bytes"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"sent_bytes_total": 1201}, "sent_bytes_total 1,201, reference 1,200"),
        ({"messages": 9}, "messages 9, reference 8"),
        ({"status": "diverged"}, "status diverged, reference ok"),
        ({"accuracy": None}, "no accuracy, reference 0.9000"),
    ],
)
def test_what_differs_is_named(change, why):
    row = judged(run(0, **change)).loc["r0"]
    assert (row["verdict"], row["why"]) == ("differs", why)


def test_word_errors_go_before_accuracy():
    reference = [row | {"wer": 0.2 + 0.01 * row["seed"]} for row in REFERENCE]
    assert judged(run(9, wer=0.9), reference=reference).loc["r9", ["metric", "verdict"]].tolist() == [
        "wer",
        "differs",
    ]


def test_another_experiment_has_no_counterpart():
    assert judged(run(7, sync_period=6)).empty
    assert "none of the 1 runs" in compare.summary(judged(run(7, sync_period=6)), 1, "there")[0]


def test_over_memory_is_an_outcome():
    left = {"status": "over_memory", "accuracy": None, "loss": None, "sent_bytes_total": None}
    assert judged(run(0, **left), reference=[run(0, **left)]).loc["r0", "verdict"] == "same bits"


def test_the_verb_compares_records_with_a_table(tmp_path, capsys):
    reference = tmp_path / "reference"
    write_parquet(pd.DataFrame(REFERENCE), reference / "runs.parquet")
    for record in (REFERENCE[0], run(8), run(9, sent_bytes_total=1)):
        path = tmp_path / "mine/runs" / record["run_id"] / "record.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(record))
    out = tmp_path / "out.csv"
    arguments = [
        "compare",
        "--results",
        str(tmp_path / "mine"),
        "--reference",
        str(reference),
        "--csv",
        str(out),
    ]
    assert main(arguments) == 0
    told = capsys.readouterr().out
    assert "3 of 3 runs have a counterpart" in told and "1 same bits, 1 within range, 1 differs" in told
    assert "differs: r9: sent_bytes_total 1, reference 1,200" in told
    assert list(pd.read_csv(out)["verdict"]) == ["same bits", "within range", "differs"]
    assert main(["compare", "--results", str(tmp_path / "none"), "--reference", str(reference)]) == 2
    with pytest.raises(UserError, match="has no runs"):
        compare.load(tmp_path / "none")


def test_what_makes_an_experiment_stands_in_records():
    assert set(compare.EXPERIMENT) | set(compare.QUALITY) | set(compare.BYTES) <= set(columns())
