import copy

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from implementations.errors import UserError
from implementations.reporting import verdicts
from implementations.reporting.claims import Claim, join_published, load_claims, load_published
from implementations.reporting.columns import types
from tests.reporting import synthetic


def claim(kind, tolerance, holds_as="shape holds", published=(), needs=(), **evaluate):
    body = {
        "id": "a-claim",
        "source": {"published": list(published)} if published else {"text": "Section 3"},
        "statement": "It is so.",
        "needs": {"experiments": ["period"], "tiers": ["default"], **dict(needs)},
        "evaluate": {"kind": kind, "over": "records", "value": "accuracy", "select": {"method": "averaging"}}
        | evaluate,
        "tolerance": {"why": "because"} | tolerance,
        "holds_as": holds_as,
        "command": "snakemake --cores all averaging",
    }
    return Claim("averaging", body)


def judged(entry, rows, timings=None, published=None):
    published = synthetic.published() if published is None else published
    return verdicts.judge_all([entry], published, synthetic.runs(rows), timings)


def seeds(accuracies, **given):
    return [synthetic.record(seed=s, accuracy=a, **given) for s, a in enumerate(accuracies)]


def only(table):
    assert len(table) == 1
    return table.iloc[0]


# -- what every row has ------------------------------------------------------------------------------------------------


def test_columns_are_those_promised():
    table = judged(claim("bound", {"low": 0.5}), seeds([0.8, 0.9]))
    assert list(table.columns) == [
        "claim_id", "paper", "source", "statement", "published", "unit", "ours", "ci_low", "ci_high", "evidence",
        "verdict", "reason", "command",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "accuracies, verdict",
    [([0.8, 0.9], "shape holds"), ([0.6, 0.65], "not reproduced"), ([0.6, 0.8], "inconclusive")],
)
def test_a_bound_holds_fails_or_is_covered(accuracies, verdict):
    row = only(judged(claim("bound", {"low": 0.7}), seeds(accuracies)))
    assert row["verdict"] == verdict
    assert (row["ci_low"], row["ci_high"]) == (min(accuracies), max(accuracies))
    assert "range of 2" in row["reason"]


def test_six_values_are_judged_by_students_interval():
    accuracies = [0.80, 0.81, 0.79, 0.82, 0.78, 0.80]
    row = only(judged(claim("bound", {"low": 0.785}), seeds(accuracies)))
    expected = stats.ttest_1samp(accuracies, 0).confidence_interval(0.95)
    assert (row["ci_low"], row["ci_high"]) == pytest.approx((expected.low, expected.high))
    assert row["verdict"] == "shape holds" and "95 % interval of 6" in row["reason"]


def test_reproduced_is_what_the_claim_says_it_may_be():
    assert only(judged(claim("bound", {"low": 0.5}, "reproduced"), seeds([0.9])))["verdict"] == "reproduced"


# -- evidence ----------------------------------------------------------------------------------------------------------


def test_kinds_of_evidence_are_judged_apart():
    rows = seeds([0.9, 0.9]) + seeds([0.2, 0.2], evidence="measured")
    table = judged(claim("bound", {"low": 0.5}), rows).set_index("evidence")
    assert dict(table["verdict"]) == {"measured": "not reproduced", "simulated": "shape holds"}


def test_a_comparison_across_kinds_is_refused():
    entry = claim(
        "equality", {"absolute": 0.1}, select={"evidence": "simulated"}, against={"evidence": "measured"}
    )
    row = only(judged(entry, seeds([0.9]) + seeds([0.9], evidence="measured")))
    assert row["verdict"] == "not comparable here"


def test_an_identity_may_be_checked_across_kinds_and_says_so():
    entry = claim("exact", {}, "reproduced", value="sent_bytes_total", select={"evidence": "simulated"},
                  against={"evidence": "measured"}, pair=["workers"])  # fmt: skip
    row = only(judged(entry, seeds([0.9]) + seeds([0.9], evidence="measured")))
    assert (row["verdict"], row["evidence"]) == ("reproduced", "measured and simulated")


def projections(speedup=9.5, **given):
    row = {"run_id": "p", "paper": "averaging", "method": "averaging", "workers": 16, "sync_period": 10,
           "cluster": "stampede-k20", "evidence": "projected", "speedup_best_sequential": speedup}  # fmt: skip
    return pd.DataFrame([row | given])


def published_claim(holds_as="consistent (projected)", tolerance=0.15, ids=("avg-speedup-w16-k10",)):
    return claim("published_value", {"relative": tolerance}, holds_as, ids, over="timings",
                 value="speedup_best_sequential", match=["workers", "sync_period"])  # fmt: skip


def test_a_projection_that_fails_says_what_it_is():
    row = only(judged(published_claim(), [], projections(15.1)))
    assert (row["verdict"], row["ours"]) == ("not reproduced", 15.1)
    assert row["reason"].startswith("single value; allowed 7.9 to 10.7; a blind projection from datasheets")
    assert "blind" not in only(judged(published_claim(), [], projections()))["reason"]


@pytest.mark.parametrize(
    "low, high, told",
    [(1.1815, 1.5985, "1.18 to 1.60"), (155.89, 210.91, "156 to 211"), (0.999, 1.001, "0.9990 to 1.0010"),
     (-0.5, 0.5, "-0.500 to 0.500"), (2, 2, "2.00 to 2.00"), (0, 0, "0.00 to 0.00")],
)  # fmt: skip
def test_allowed_regions_are_told_in_few_digits(low, high, told):
    assert verdicts._span(low, high) == told


def test_a_projection_near_the_published_number_is_consistent():
    row = only(judged(published_claim(), [], projections()))
    assert (row["verdict"], row["evidence"]) == ("consistent (projected)", "projected")
    assert (row["published"], row["unit"], row["ours"]) == ("9.32", "x", 9.5)
    assert row["source"] == "v2 Scaling figure"


@settings(max_examples=30)
@given(
    st.floats(0.1, 100),
    st.floats(0, 10),
    st.sampled_from(["reproduced", "shape holds", "consistent (projected)"]),
)
def test_a_projection_is_never_reproduced(speedup, tolerance, holds_as):
    verdict = only(judged(published_claim(holds_as, tolerance), [], projections(speedup)))["verdict"]
    inside = abs(speedup - 9.32) <= tolerance * 9.32
    assert verdict in ("consistent (projected)", "not reproduced")
    assert verdict == ("consistent (projected)" if inside else "not reproduced")


def test_only_a_projection_is_called_consistent_projected():
    row = only(judged(published_claim(), [], projections(evidence="simulated")))
    assert row["verdict"] == "shape holds"


def test_what_was_fitted_gets_no_verdict_of_agreement():
    row = only(judged(published_claim(), [], projections(evidence="fitted")))
    assert row["verdict"] == "not comparable here" and "fitted" in row["reason"]


def test_an_input_gets_no_verdict_of_agreement():
    row = only(judged(published_claim(ids=("avg-epoch-w1",)), [], projections()))
    assert row["verdict"] == "not comparable here" and "input" in row["reason"]


def test_a_row_for_each_published_number():
    entry = published_claim(ids=("avg-speedup-w16-k10", "avg-speedup-w16-k20"))
    table = judged(entry, [], projections()).set_index("claim_id")
    assert table.loc["a-claim/avg-speedup-w16-k10", "verdict"] == "consistent (projected)"
    assert table.loc["a-claim/avg-speedup-w16-k20", "verdict"] == "not run"


def test_an_unknown_published_number_is_named():
    row = only(judged(published_claim(ids=("nowhere",)), [], projections()))
    assert row["verdict"] == "not run" and "nowhere" in row["reason"]


# -- nothing to judge --------------------------------------------------------------------------------------------------


def test_missing_results_read_not_run_with_the_command_and_the_tiers():
    row = only(
        judged(claim("bound", {"low": 0.5}, select={"method": "averaging", "workers": 64}), seeds([0.9]))
    )
    assert row["verdict"] == "not run" and np.isnan(row["ours"]) and row["command"].startswith("snakemake")
    assert "workers=64" in row["reason"] and "default" in row["reason"]


def test_speech_that_is_not_there_reads_not_run():
    row = only(judged(claim("bound", {"low": 0.5}, needs={"speech": True}), []))
    assert row["verdict"] == "not run" and "speech" in row["reason"]


def test_what_cannot_be_had_is_not_comparable():
    row = only(judged(claim("bound", {"low": 0.5}, needs={"unavailable": "licensed corpus"}), seeds([0.9])))
    assert (row["verdict"], row["reason"]) == ("not comparable here", "licensed corpus")


@pytest.mark.parametrize("status", ["failed", "timeout", "skipped"])
def test_failed_runs_read_not_run_with_their_reason_and_log(status):
    rows = seeds([0.9], status=status, reason="rank 3 died", log_path="results/logs/x.log")
    row = only(judged(claim("bound", {"low": 0.5}), rows))
    assert row["verdict"] == "not run"
    assert (
        status in row["reason"] and "rank 3 died" in row["reason"] and "results/logs/x.log" in row["reason"]
    )


def test_failed_runs_beside_good_ones_are_told():
    rows = seeds([0.9, 0.9]) + [synthetic.record(seed=7, status="failed", reason="out of memory")]
    row = only(judged(claim("bound", {"low": 0.5}), rows))
    assert row["verdict"] == "shape holds" and "1 of 3 runs failed: out of memory" in row["reason"]


def test_diverged_runs_are_left_out_or_counted_as_the_claim_says():
    rows = [*seeds([0.9]), synthetic.record(seed=7, status="diverged", accuracy=None)]
    row = only(judged(claim("bound", {"low": 0.5}), rows))
    assert row["verdict"] == "shape holds" and "left out" in row["reason"]
    row = only(judged(claim("bound", {"low": 0.5}, diverged_as=0.1), rows))
    assert row["verdict"] == "inconclusive" and row["ci_low"] == 0.1 and "counted as 0.1" in row["reason"]


def test_a_missed_target_is_a_result_whose_time_is_infinite():
    rows = seeds([0.9], status="target_missed", target_reached=False, time_to_target_s=None)
    assert only(judged(claim("bound", {"low": 0.5}), rows))["verdict"] == "shape holds"
    row = only(judged(claim("bound", {"high": 10.0}, value="time_to_target_s"), rows))
    assert row["verdict"] == "not reproduced" and np.isinf(row["ours"])


# -- kinds of claim ----------------------------------------------------------------------------------------------------


def test_pairs_are_compared_within_their_seed():
    # each pair differs by 0.01; the groups overlap, so that only pairing can tell
    rows = seeds([0.7, 0.8, 0.9], workers=4) + seeds([0.71, 0.81, 0.91], workers=1)
    how = {"select": {"workers": 1}, "against": {"workers": 4}}
    paired = only(judged(claim("bound", {"low": 0.005}, pair=["seed"], **how), rows))
    assert paired["verdict"] == "shape holds" and paired["ours"] == pytest.approx(0.01)
    assert only(judged(claim("bound", {"low": 0.005}, **how), rows))["verdict"] == "inconclusive"


def test_a_ratio():
    rows = seeds([0.8, 0.8], workers=4) + seeds([0.4, 0.4], workers=1)
    entry = claim(
        "equality", {"relative": 0.1}, select={"workers": 4}, against={"workers": 1}, contrast="ratio"
    )
    row = only(judged(entry, rows))
    assert row["ours"] == 2.0 and row["verdict"] == "not reproduced"


def test_two_large_groups_are_compared_by_bootstrap():
    draw = np.random.default_rng(0)
    first, second = draw.normal(0.8, 0.01, 20), draw.normal(0.7, 0.01, 20)
    rows = seeds(first, workers=1) + seeds(second, workers=4)
    entry = claim("bound", {"low": 0.09, "high": 0.11}, select={"workers": 1}, against={"workers": 4})
    row = only(judged(entry, rows))
    expected = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    assert (row["ci_low"], row["ci_high"]) == pytest.approx((expected.low, expected.high), abs=0.002)


def ordered(groups, direction="increasing", tolerance=0.0):
    cases = [{"label": f"K={k}", "select": {"sync_period": k}} for k in groups]
    rows = [row for k, values in groups.items() for row in seeds(values, sync_period=k)]
    entry = claim("order", {"absolute": tolerance}, cases=cases, direction=direction, pair=["seed"])
    return only(judged(entry, rows))


def test_an_order_of_every_step():
    assert ordered({1: [0.1, 0.2], 10: [0.3, 0.3], 20: [0.4, 0.4]})["verdict"] == "shape holds"
    assert ordered({1: [0.1, 0.2], 10: [0.3, 0.3], 20: [0.2, 0.2]})["verdict"] == "not reproduced"
    assert ordered({1: [0.1, 0.4], 10: [0.3, 0.3]})["verdict"] == "inconclusive"
    assert ordered({1: [0.4, 0.4], 10: [0.3, 0.3]}, "decreasing")["verdict"] == "shape holds"
    assert ordered({1: [0.3], 10: [0.3]})["verdict"] == "not reproduced"
    assert ordered({1: [0.3], 10: [0.299]}, tolerance=0.01)["verdict"] == "shape holds"


def trend(curves, spearman=1.0, direction="increasing"):
    rows = [
        synthetic.record(seed=s, workers=w, accuracy=a)
        for s, curve in enumerate(curves)
        for w, a in zip((1, 2, 4, 8), curve, strict=False)
    ]
    entry = claim("trend", {"spearman": spearman}, along="workers", each=["seed"], direction=direction)
    return only(judged(entry, rows))


def test_a_trend_on_every_curve():
    up, down, bent = [0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1], [0.1, 0.3, 0.2, 0.4]
    assert trend([up, up])["verdict"] == "shape holds"
    assert trend([down, down])["verdict"] == "not reproduced"
    assert trend([down, down], direction="decreasing")["verdict"] == "shape holds"
    assert trend([up, bent])["verdict"] == "inconclusive"
    assert trend([bent], spearman=0.8)["ours"] == pytest.approx(stats.spearmanr([1, 2, 4, 8], bent).statistic)
    assert trend([[0.2] * 4])["verdict"] == "not reproduced"
    assert trend([up[:2]])["verdict"] == "not run"


def crossing(first, second, **tolerance):
    rows = [
        synthetic.record(method=method, workers=w, accuracy=a, sync_period=10)
        for method, values in (("averaging", first), ("data_parallel", second))
        for w, a in zip((1, 2, 4), values, strict=False)
    ]
    entry = claim("crossing", tolerance, along="workers", against={"method": "data_parallel"})
    return only(judged(entry, rows))


def test_a_crossing_once_and_upwards():
    row = crossing([0.1, 0.2, 0.5], [0.3, 0.3, 0.3], low=2, high=4)
    # the straight line from -0.1 at 2 to 0.2 at 4 is zero at 2 2/3
    assert row["verdict"] == "shape holds" and row["ours"] == pytest.approx(2 + 2 / 3)
    assert crossing([0.1, 0.2, 0.5], [0.3, 0.3, 0.3], low=3, high=4)["verdict"] == "inconclusive"
    assert crossing([0.1, 0.2, 0.5], [0.3, 0.3, 0.3], low=8)["verdict"] == "not reproduced"
    assert crossing([0.5, 0.2, 0.1], [0.3, 0.3, 0.3])["verdict"] == "not reproduced"
    assert crossing([0.1, 0.1, 0.1], [0.3, 0.3, 0.3])["verdict"] == "not reproduced"
    assert crossing([0.1], [0.3])["verdict"] == "not run"


def test_exact_is_to_the_byte():
    entry = claim("exact", {}, "reproduced", value="sent_bytes_total", equals="sent_bytes_predicted")
    rows = seeds([0.9, 0.9])
    assert only(judged(entry, rows))["verdict"] == "reproduced"
    rows[1] = copy.deepcopy(rows[1])
    rows[1]["sent_bytes_total"] += 1
    row = only(judged(entry, rows))
    assert row["verdict"] == "not reproduced" and row["ours"] == 1.0 and "1 beyond" in row["reason"]


def test_an_expression_of_columns():
    rows = seeds([0.9])
    entry = claim(
        "exact",
        {"absolute": 0},
        value="sent_bytes_total",
        equals="2 * (workers - 1) * 4 * model_params * epochs * ((steps // epochs + sync_period - 1) // sync_period)",
    )
    assert only(judged(entry, rows))["verdict"] == "shape holds"


def test_a_median_has_its_own_interval():
    values = [0.80, 0.81, 0.79, 0.82, 0.78, 0.80, 0.50]
    row = only(judged(claim("bound", {"low": 0.0}, aggregate="median"), seeds(values)))
    assert row["ours"] == 0.80 and row["ci_low"] <= 0.80 <= row["ci_high"]


def test_filters_on_experiments_absent_values_and_lists():
    rows = [
        synthetic.record(experiments=["period/averaging"]),
        synthetic.record(seed=1, experiments=["periodic/x"]),
    ]
    rows += [synthetic.record(method="data_parallel", workers=w, sync_period=None) for w in (2, 4)]
    runs = synthetic.runs(rows)

    def count(**filters):
        return int(verdicts.matches(runs, filters, "test").sum())

    assert count(experiments="period") == count(experiments="period/averaging") == 1
    assert count(sync_period=None) == 2 and count(workers=[2, 4]) == 4 and count(sync_period=[None, 10]) == 4


def test_a_column_or_expression_that_does_not_exist_is_the_users_mistake():
    timings = synthetic.timings(synthetic.runs())
    with pytest.raises(UserError, match=r"a-claim.*'bandwith'"):
        judged(
            claim("bound", {"low": 0}, over="timings", select={"bandwith": 3}), synthetic.records(), timings
        )
    with pytest.raises(UserError, match=r"a-claim.*acuracy"):
        judged(claim("bound", {"low": 0}, value="acuracy"), seeds([0.9]))


# -- the files ---------------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0, 1))
def test_the_verdict_follows_from_the_interval(values, low):
    row = only(judged(claim("bound", {"low": low}), seeds(values)))
    expected = (
        "shape holds"
        if row["ci_low"] >= low
        else "not reproduced"
        if row["ci_high"] < low
        else "inconclusive"
    )
    assert row["verdict"] == expected and row["verdict"] in verdicts.VERDICTS


def test_the_projects_own_claims_are_judged_and_every_number_resolves(root, tmp_path):
    claims, published = load_claims(root / "config"), load_published(root / "config")
    assert claims and {name for entry in claims for name in entry.published_ids} <= set(published.index)
    runs = synthetic.runs()
    table = verdicts.make_claims(runs, synthetic.timings(runs), tmp_path / "claims.csv", root / "config")
    assert set(table["verdict"]) <= set(verdicts.VERDICTS)
    assert {claim_id.split("/")[0] for claim_id in table["claim_id"]} == {entry.id for entry in claims}
    assert not table.duplicated(["claim_id", "evidence"]).any()
    assert (table.loc[table["evidence"] == "projected", "verdict"] != "reproduced").all()
    assert (table.loc[table["verdict"] == "not run", ["reason", "command"]].notna()).all(axis=None)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "claims.parquet"), table)
    assert list(pd.read_csv(tmp_path / "claims.csv").columns) == verdicts.COLUMNS


def test_without_results_every_claim_is_there_and_none_is_judged(root, tmp_path):
    table = verdicts.make_claims(None, None, tmp_path / "claims.csv", root / "config")
    assert set(table["verdict"]) <= {"not run", "not comparable here"}


def test_the_projects_claims_name_columns_that_exist(root):
    known = set(types()) | set(synthetic.timings(synthetic.runs()).columns) | {"run_evidence"}
    for entry in load_claims(root / "config"):
        how = entry.body["evaluate"]
        assert set(how["select"]) | set(how.get("against", {})) | set(how.get("match", [])) <= known, entry.id


def test_a_claims_file_with_faults_names_them_all(root, tmp_path):
    (tmp_path / "claims").mkdir()
    (tmp_path / "schemas").mkdir()
    schema = (root / "config/schemas/claims.schema.yaml").read_text()
    (tmp_path / "schemas/claims.schema.yaml").write_text(schema)
    body = claim("bound", {"low": 0.5}).body
    wrong = body | {"id": "Bad Id", "holds_as": "certainly"}
    (tmp_path / "claims/a.yaml").write_text(yaml.safe_dump({"paper": "averaging", "claims": [wrong]}))
    (tmp_path / "claims/b.yaml").write_text(yaml.safe_dump({"paper": "averaging", "claims": [body, body]}))
    (tmp_path / "claims/c.yaml").write_text("{")
    with pytest.raises(UserError) as raised:
        load_claims(tmp_path)
    for part in ("a.yaml", "Bad Id", "certainly", "c.yaml", "'a-claim' is used twice"):
        assert part in str(raised.value)


def test_published_ids_are_unique():
    frame = synthetic.published().reset_index()
    with pytest.raises(UserError, match="avg-speedup-w2"):
        join_published([frame, frame])
