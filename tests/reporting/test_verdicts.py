import copy

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from implementations.errors import UserError
from implementations.reporting import evaluation, verdicts
from implementations.reporting.claims import Claim, join_published, load_claims, load_published
from implementations.reporting.columns import types
from implementations.reporting.rows import matches
from implementations.speech import wer
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
        "dataset", "verdict", "reason", "command",
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
    assert evaluation._span(low, high) == told


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
        return int(matches(runs, filters, "test").sum())

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


# -- speech ------------------------------------------------------------------------------------------------------------

SPEAKERS = np.repeat(["a", "b", "c", "d", "e"], 20)


def run_of(rates, seed=0, **given):
    """A run that has so many of ten words wrong in each utterance, and as many of a hundred frames."""
    row = synthetic.speech_record(seed=seed, rate=0.1, **given)
    wrong = np.broadcast_to(np.asarray(rates), len(SPEAKERS))
    nothing = np.zeros(len(SPEAKERS), int)
    rows = {"run_id": row["run_id"], "utterance": [f"u{i:03d}" for i in range(len(SPEAKERS))], "speaker": SPEAKERS,
            "words": 10, "substitutions": wrong, "deletions": nothing, "insertions": nothing, "frames": 100,
            "frame_errors": wrong}  # fmt: skip
    return row | {
        "wer": wrong.mean() / 10,
        "frame_error": wrong.mean() / 100,
        "utterances": pd.DataFrame(rows),
    }


def drawn(seed, rate=0.1):
    return np.random.default_rng(seed).binomial(10, rate, len(SPEAKERS))


def spoken(kind, tolerance, rows, published=None, utterances=None, **given):
    entry = claim(kind, tolerance, **{"value": "wer", "resample": "speakers"} | given)
    utterances = synthetic.utterances(rows) if utterances is None else utterances
    published = synthetic.published() if published is None else published
    return verdicts.judge_all([entry], published, synthetic.runs(rows), None, utterances)


def word_errors(row):
    table = row["utterances"]
    return wer.WordErrors(
        *(table[n].to_numpy() for n in ("substitutions", "deletions", "insertions", "words"))
    )


SIXTEEN, FOUR = {"method": "averaging", "workers": 16}, {"workers": 4}


def test_a_difference_over_speakers_is_that_of_the_pairwise_bootstrap():
    ours = [run_of(drawn(seed), seed, workers=16) for seed in range(3)]
    base = [run_of(drawn(seed + 9), seed, workers=4) for seed in range(3)]
    row = only(spoken("bound", {"low": 0}, [*ours, *base], select=SIXTEEN, against=FOUR, pair=["seed"]))
    expected = wer.compare([word_errors(r) for r in base], [word_errors(r) for r in ours], SPEAKERS)
    assert (row["ours"], row["ci_low"], row["ci_high"]) == pytest.approx(
        (expected.value, expected.low, expected.high)
    )
    assert "95 % interval over 5 speakers and 3 seeds" in row["reason"] and row["verdict"] == "inconclusive"


def test_a_level_over_speakers_is_the_interval_of_its_run():
    run = run_of(drawn(0), workers=16)
    row = only(spoken("bound", {"high": 50}, [run], value="100 * wer", select=SIXTEEN))
    expected = wer.interval(word_errors(run), SPEAKERS)
    assert (row["ours"], row["ci_low"], row["ci_high"]) == pytest.approx(
        (100 * expected.value, 100 * expected.low, 100 * expected.high)
    )
    assert "5 speakers, one seed" in row["reason"]


def test_only_pairs_of_seeds_count_where_the_claim_pairs_them():
    rows = [
        run_of(2, 0, workers=16),
        run_of(9, 7, workers=16),
        run_of(1, 0, workers=4),
        run_of(1, 3, workers=4),
    ]
    how = {"select": SIXTEEN, "against": FOUR}
    assert only(spoken("bound", {"low": 0}, rows, **how, pair=["seed"]))["ours"] == pytest.approx(0.1)
    assert only(spoken("bound", {"low": 0}, rows, **how))["ours"] == pytest.approx(0.45)
    row = only(spoken("bound", {"low": 0}, rows[1:], **how, pair=["seed"]))
    assert row["verdict"] == "not run" and "no seed that all groups have" in row["reason"]


def test_the_repeats_of_a_seed_are_one_value_over_speakers():
    rows = [run_of(1, 0, workers=16), run_of(3, 0, workers=16, repeat=1), run_of(5, 1, workers=16)]
    assert only(spoken("bound", {"low": 0}, rows, select=SIXTEEN))["ours"] == pytest.approx((0.2 + 0.5) / 2)


def test_frame_errors_are_resampled_too():
    rows = [run_of(3, workers=16), run_of(2, workers=4)]
    row = only(
        spoken("equality", {"absolute": 2}, rows, value="100 * frame_error", select=SIXTEEN, against=FOUR)
    )
    # every utterance has the same errors, so that no resample differs
    assert (row["ours"], row["ci_low"], row["ci_high"]) == pytest.approx((1.0, 1.0, 1.0))
    assert row["verdict"] == "shape holds" and row["unit"] == "difference of frame error in points"
    row = only(spoken("equality", {"relative": 0.6}, rows, select=SIXTEEN, against=FOUR, contrast="ratio"))
    assert row["ours"] == pytest.approx(1.5) and row["verdict"] == "shape holds"


def test_an_order_over_speakers():
    cases = [{"label": f"m={m}", "select": {"workers": m}} for m in (4, 16)]
    rows = [run_of(2, workers=16), run_of(1, workers=4)]
    how = {"cases": cases, "select": {"method": "averaging"}}
    row = only(spoken("order", {}, rows, **how, direction="increasing"))
    assert (row["verdict"], row["ours"]) == ("shape holds", pytest.approx(0.1))
    assert "m=4: 0.1, m=16: 0.2" in row["reason"] and "over 5 speakers" in row["reason"]
    assert only(spoken("order", {}, rows, **how, direction="decreasing"))["verdict"] == "not reproduced"


def test_a_trend_over_speakers_has_an_interval():
    how = {"select": {"method": "averaging"}, "along": "workers", "direction": "increasing"}
    plain = [run_of(m, workers=m) for m in (2, 4, 8)]
    row = only(spoken("trend", {"spearman": 1.0}, plain, **how))
    assert (row["verdict"], row["ours"], row["ci_low"]) == ("shape holds", 1.0, 1.0)
    noisy = [run_of(drawn(m), workers=m) for m in (2, 4, 8)]
    row = only(spoken("trend", {"spearman": 1.0}, noisy, **how))
    assert row["verdict"] == "inconclusive" and row["ci_low"] < 0 < row["ci_high"] == 1.0
    falling = [run_of(10 - m, workers=m) for m in (2, 4, 8)]
    assert only(spoken("trend", {"spearman": 1.0}, falling, **how))["verdict"] == "not reproduced"


CORNERS = [
    {"label": f"{optimizer} at {workers}", "select": {"optimizer": optimizer, "workers": workers}}
    for optimizer in ("sgd", "ng_sgd")
    for workers in (16, 1)
]


def corners(sgd_16, sgd_1, ng_16, ng_1, seed=0):
    values = ((("sgd", 16), sgd_16), (("sgd", 1), sgd_1), (("ng_sgd", 16), ng_16), (("ng_sgd", 1), ng_1))
    return [run_of(rate, seed, optimizer=o, workers=m) for (o, m), rate in values]


def test_an_interaction_is_a_difference_of_differences():
    how = {"cases": CORNERS, "select": {"method": "averaging"}}
    row = only(spoken("interaction", {"low": 0}, corners(5, 1, 2, 1), **how, value="100 * wer"))
    assert (row["ours"], row["ci_low"], row["ci_high"]) == pytest.approx((30, 30, 30))
    assert row["verdict"] == "shape holds" and row["unit"] == "difference of differences of wer in points"
    assert "sgd at 16: 50, sgd at 1: 10, ng_sgd at 16: 20, ng_sgd at 1: 10" in row["reason"]
    assert only(spoken("interaction", {"low": 0}, corners(2, 1, 5, 1), **how))["verdict"] == "not reproduced"
    assert only(spoken("interaction", {"low": 0}, corners(5, 1, 2, 1)[:3], **how))["verdict"] == "not run"


def test_an_interaction_by_pairs_needs_no_utterances():
    rows = [*corners(5, 1, 2, 1), *corners(6, 2, 3, 2, seed=1), *corners(9, 1, 1, 1, seed=2)[:3]]
    entry = claim("interaction", {"low": 0.25}, value="wer", cases=CORNERS, select={"method": "averaging"},
                  pair=["seed"])  # fmt: skip
    row = only(judged(entry, rows))
    assert (row["ours"], row["ci_low"], row["ci_high"]) == pytest.approx((0.3, 0.3, 0.3))
    assert row["verdict"] == "shape holds" and "range of 2" in row["reason"]


def test_a_diverged_run_counts_as_its_constant_rate():
    lost = run_of(0, 1, workers=16) | {"status": "diverged", "wer": None}
    rows = [run_of(2, 0, workers=16), {k: v for k, v in lost.items() if k != "utterances"}]
    how = {"select": SIXTEEN, "value": "100 * wer"}
    row = only(spoken("bound", {"low": 30}, rows, **how, diverged_as=100))
    assert row["ours"] == pytest.approx(60) and "1 of 2 runs diverged, counted as 100" in row["reason"]
    row = only(spoken("bound", {"low": 30}, rows, **how))
    assert row["ours"] == pytest.approx(20) and "1 of 2 runs diverged, left out" in row["reason"]
    alone = only(spoken("bound", {"low": 30}, rows[1:], **how, diverged_as=100))
    assert (alone["ours"], alone["ci_low"], alone["verdict"]) == (100, 100, "shape holds")


def test_runs_without_utterances_are_left_out_and_told():
    rows = [run_of(2, 0, workers=16), run_of(9, 1, workers=16)]
    row = only(spoken("bound", {"low": 0}, rows, select=SIXTEEN, utterances=synthetic.utterances(rows[:1])))
    assert row["ours"] == pytest.approx(0.2) and "1 of 2 runs without utterances, left out" in row["reason"]
    row = only(spoken("bound", {"low": 0}, rows, select=SIXTEEN, utterances=synthetic.utterances([])))
    assert row["verdict"] == "not run" and "2 of 2 runs without utterances" in row["reason"]


def test_runs_on_other_utterances_are_not_compared():
    rows = [run_of(2, workers=16), run_of(1, workers=4)]
    rows[1]["utterances"] = rows[1]["utterances"].iloc[:50]
    row = only(spoken("bound", {"low": 0}, rows, select=SIXTEEN, against=FOUR))
    assert row["verdict"] == "not run" and "different utterances" in row["reason"]


@pytest.mark.parametrize("value", ["accuracy", "wer + frame_error", "1 - wer"])
def test_only_rates_that_utterances_give_are_resampled(value):
    with pytest.raises(
        UserError, match=r"a-claim: value: got '.*'; allowed with resample: wer or 100 \* wer"
    ):
        spoken("bound", {"low": 0}, [run_of(2, workers=16)], value=value)


def test_data_sets_are_judged_apart():
    rows = [run_of(2, workers=16), run_of(4, workers=16, dataset="generated_words", data_kind="generated")]
    table = spoken("bound", {"high": 0.3}, rows, select=SIXTEEN).set_index("dataset")
    assert dict(table["verdict"]) == {"an4": "shape holds", "generated_words": "not reproduced"}
    assert "on generated speech" in table.loc["generated_words", "reason"]
    assert "generated" not in table.loc["an4", "reason"]


def test_data_sets_are_never_set_against_each_other():
    rows = [run_of(2, workers=16), run_of(4, workers=16, dataset="generated_words", data_kind="generated")]
    how = {"select": {"dataset": "an4"}, "against": {"dataset": "generated_words"}}
    row = only(spoken("bound", {"low": 0}, rows, **how))
    assert row["verdict"] == "not comparable here" and "one data set against another" in row["reason"]


def test_an_identity_holds_over_all_data_sets():
    entry = claim("exact", {}, "reproduced", value="sent_bytes_total", equals="sent_bytes_predicted")
    row = only(judged(entry, [*seeds([0.9]), run_of(2, workers=16, data_kind="generated")]))
    assert (row["verdict"], row["dataset"]) == ("reproduced", "fashion_mnist, an4")


def test_generated_speech_never_reproduces_the_papers_number():
    rows = [run_of(2, workers=16, data_kind="generated")]
    row = only(spoken("bound", {"low": 0}, rows, holds_as="reproduced", select=SIXTEEN))
    assert row["verdict"] == "shape holds"


def test_a_published_word_error_rate_finds_its_condition():
    rows = [run_of(1, workers=16), run_of(2, workers=16, init="random"), run_of(3, workers=16, sync_period=20),
            run_of(4, workers=16, optimizer="sgd"), run_of(5, workers=16, schedule="newbob"), run_of(6, workers=8),
            run_of(7, workers=1), run_of(8, workers=1, method="sequential", seed=1)]  # fmt: skip
    names = ("w16-k10", "w16-k20", "w16-sgd", "w16-newbob", "w8", "w1")
    entry = claim("published_value", {"absolute": 0.5}, "reproduced", [f"avg-wer-swb-{name}" for name in names],
                  value="100 * wer", resample="speakers", select={"paper": "averaging"},
                  match=["workers", "sync_period", "optimizer", "init", "schedule"])  # fmt: skip
    table = verdicts.judge_all(
        [entry], synthetic.published(), synthetic.runs(rows), None, synthetic.utterances(rows)
    )
    found = {
        name.rpartition("swb-")[2]: ours for name, ours in zip(table["claim_id"], table["ours"], strict=True)
    }
    # one worker averages with nobody: its period is not looked at, whether it has one or not
    assert found == pytest.approx(
        {"w16-k10": 10, "w16-k20": 30, "w16-sgd": 40, "w16-newbob": 50, "w8": 60, "w1": 75}
    )


def test_numbers_obtained_elsewhere_stand_beside_ours_without_a_verdict():
    entry = claim("published_value", {"absolute": 99}, "reproduced", ["avg-wer-swb-w16-k10", "avg-wer-swb-w8"],
                  needs={"elsewhere": "printed for Switchboard"}, value="100 * wer", resample="speakers",
                  match=["workers", "sync_period"])  # fmt: skip
    rows = [run_of(2, workers=16)]
    table = verdicts.judge_all(
        [entry], synthetic.published(), synthetic.runs(rows), None, synthetic.utterances(rows)
    )
    assert set(table["verdict"]) == {"not comparable here"}
    first, second = table.to_dict("records")
    assert (first["published"], first["ours"], first["unit"]) == ("15.1", pytest.approx(20), "%")
    assert first["reason"].startswith("printed for Switchboard; 95 % interval over 5 speakers")
    assert "allowed" not in first["reason"]
    assert np.isnan(second["ours"]) and second["reason"] == "printed for Switchboard"


def test_a_claim_on_speech_that_is_there_but_not_so_says_what_is_missing():
    row = only(
        spoken("bound", {"low": 0}, [run_of(2, workers=16)], needs={"speech": True}, select={"workers": 64})
    )
    assert row["verdict"] == "not run" and "workers=64" in row["reason"]


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
    assert not table.duplicated(["claim_id", "evidence", "dataset"]).any()
    assert (table.loc[table["evidence"] == "projected", "verdict"] != "reproduced").all()
    assert (table.loc[table["verdict"] == "not run", ["reason", "command"]].notna()).all(axis=None)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "claims.parquet"), table)
    assert list(pd.read_csv(tmp_path / "claims.csv").columns) == verdicts.COLUMNS


def test_what_was_judged_names_the_command_of_its_tier(root, tmp_path):
    runs = synthetic.runs()
    given = (runs, synthetic.timings(runs), tmp_path / "claims.csv", root / "config")
    table = verdicts.make_claims(*given, tier="extended")
    judged = table[table["ours"].notna()]
    assert len(judged)
    assert (judged["command"] == "snakemake --cores all averaging --configfile config/extended.yaml").all()
    # in the default tier, what only another has keeps the command of that one
    default = verdicts.make_claims(*given, tier="default").set_index("claim_id")["command"]
    assert default["averaging-schedules-equal-words"].endswith("config/extended.yaml")
    assert default["averaging-costs-words"] == "snakemake --cores all averaging"


def test_without_results_every_claim_is_there_and_none_is_judged(root, tmp_path):
    table = verdicts.make_claims(None, None, tmp_path / "claims.csv", root / "config")
    assert set(table["verdict"]) <= {"not run", "not comparable here"}


def test_the_projects_claims_name_columns_that_exist(root):
    known = set(types()) | set(synthetic.timings(synthetic.runs()).columns) | {"run_evidence"}
    for entry in load_claims(root / "config"):
        how = entry.body["evaluate"]
        if how["over"] not in ("records", "timings"):  # tests/config has the columns of plans
            continue
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


# -- missed targets and limits of memory -------------------------------------------------------------------------------


def spent(millions, **given):
    """Seeds with so many megabytes to the target; None for one that missed it."""
    return [
        synthetic.record(seed=seed, bytes_to_target=value and int(1e6 * value), target_reached=value is not None,
                         status="ok" if value else "target_missed", **given)
        for seed, value in enumerate(millions)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "own, other, ours, verdict",
    [((1, 2), (3, 8), 3.5, "shape holds"), ((1, 2), (3, None), np.inf, "shape holds"),
     ((1, None), (3, 8), 1.5, "inconclusive"), ((None, None), (3, 8), 0.0, "not reproduced")],
)  # fmt: skip
def test_a_missed_target_costs_infinitely_many_bytes(own, other, ours, verdict):
    rows = spent(own, method="averaging") + spent(other, method="data_parallel")
    entry = claim("bound", {"low": 1}, value="bytes_to_target", select={"method": "data_parallel"},
                  against={"method": "averaging"}, contrast="ratio", pair=["seed"])  # fmt: skip
    row = only(judged(entry, rows))
    assert (row["ours"], row["verdict"]) == (ours, verdict)


def test_runs_without_a_target_cost_nothing_to_reach_it():
    entry = claim("bound", {"low": 1}, value="bytes_to_target")
    row = only(judged(entry, seeds([0.8], bytes_to_target=None, target_value=None, target_reached=None)))
    assert (row["verdict"], row["reason"].split(";")[0]) == ("not run", "no run gave bytes_to_target")


@pytest.mark.parametrize("low, verdict", [(0, "shape holds"), (1, "not reproduced")])
def test_how_many_times_the_bytes_may_grow(low, verdict):
    """9 : 3 on 8 workers is once more 2 : 2 on 2 in logarithms, log 3 - log 1."""
    cases = [{"label": f"{m} on {w}", "select": {"method": m, "workers": w}}
             for w in (8, 2) for m in ("data_parallel", "averaging")]  # fmt: skip
    rows = [spent([value], method=case["select"]["method"], workers=case["select"]["workers"])[0]
            for value, case in zip((9, 3, 2, 2), cases, strict=True)]  # fmt: skip
    entry = claim("interaction", {"low": np.log(3) + low - 1e-9}, value="log(bytes_to_target)",
                  select={"dataset": "fashion_mnist"}, cases=cases, pair=["seed"])  # fmt: skip
    row = only(judged(entry, rows))
    assert row["ours"] == pytest.approx(np.log(3))
    assert row["verdict"] == verdict


@pytest.mark.parametrize(
    "statuses, ours, verdict",
    [(("over_memory", "ok"), 1.0, "shape holds"), (("ok", "ok"), 0.0, "not reproduced")],
)
def test_what_does_not_fit_is_a_result_where_a_claim_asks_for_it(statuses, ours, verdict):
    rows = [
        synthetic.record(method=m, status=s)
        for m, s in zip(("data_parallel", "averaging"), statuses, strict=True)
    ]
    entry = claim("bound", {"low": 1}, value="over_memory", select={"method": "data_parallel"},
                  against={"method": "averaging"}, pair=["seed"])  # fmt: skip
    row = only(judged(entry, rows))
    assert (row["ours"], row["verdict"]) == (ours, verdict)


def test_what_does_not_fit_counts_nowhere_else():
    rows = seeds([0.9]) + [synthetic.record(seed=1, accuracy=0.1, status="over_memory")]
    row = only(judged(claim("bound", {"low": 0.5}), rows))
    assert (row["ours"], row["verdict"]) == (0.9, "shape holds")
