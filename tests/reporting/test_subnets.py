import numpy as np
import pandas as pd
import pytest

from implementations.reporting import subnets
from implementations.reporting.columns import CONFIGURATION, as_runs, is_speech
from implementations.reporting.rows import BROKEN, ENDED, OVER_MEMORY
from tests.reporting import synthetic, synthetic_ist


@pytest.mark.parametrize(
    "model, sizes, rate, plain",
    [
        ("fc_bn-512", (512,), 0.0, "fc_bn-512"),
        ("fc_bn-512-256_dropout0.75_batch", (512, 256), 0.75, "fc_bn-512-256_batch"),
        ("bow-64_mean", (64,), 0.0, "bow-64_mean"),
        ("resnet-8-16-32_blocks1-1-4", (), 0.0, "resnet-8-16-32_blocks1-1-4"),
        ("fc-64-64", (64, 64), 0.0, "fc-64-64"),
    ],
)
def test_a_label_tells_its_sizes_and_its_dropout(model, sizes, rate, plain):
    assert subnets.hidden_sizes(model) == sizes
    assert subnets.dropout_of(model) == rate and subnets.plain_model(model) == plain


def test_methods_are_called_as_the_paper_calls_them():
    def name(**given):
        return subnets.name_of(synthetic_ist.record(**given))

    assert name() == "IST (J=20)"
    assert name(method="averaging", sync_period=60) == "local SGD (J=60)"
    assert name(method="data_parallel") == "data parallel"
    assert name(method="sequential", workers=1) == "one worker"
    assert name(method="sequential", workers=1, suffix="_dropout0.75") == "one worker, dropout 0.75"
    assert name(redraw=False) == "IST, drawn once (J=20)"
    assert name(variant="faithful", lost_steps=True, server="partitioned") == (
        "IST, as published, partitioned server, lost steps (J=20)"
    )
    assert name(partition="stratified", overlap=0.5) == "IST, stratified groups, overlap 0.5 (J=20)"


def test_another_paper_keeps_its_own_words():
    assert subnets.name_of(synthetic.record()) == "averaging (K=10)"


def test_a_net_is_described_by_what_makes_it_another():
    assert subnets.model_settings("fc_bn-512_batch") == ["batch statistics at test"]
    assert subnets.model_settings("fc_bn-512_dropout0.5_mean") == ["dropout 0.5", "no output normalisation"]
    assert subnets.model_settings("fc_bn-512_no_batchnorm") == []


def test_widths_are_of_the_narrowest_layer_and_absent_where_none_is_named():
    rows = [synthetic_ist.record(), synthetic_ist.record() | {"model": "fc_bn-512-256", "run_id": "b"}]
    rows.append(synthetic_ist.record() | {"model": "resnet-8-16", "run_id": "c"})
    described = subnets.described(synthetic.runs(rows))
    assert list(described["width"].fillna(0)) == [1024, 256, 0]
    assert list(described["hidden_layers"].fillna(0)) == [1, 2, 0]


def test_differences_are_taken_seed_by_seed():
    ours = pd.DataFrame({"seed": [0, 0, 1, 2], "accuracy": [0.5, 0.7, 0.4, 0.9]})
    base = pd.DataFrame({"seed": [1, 0], "accuracy": [0.1, 0.2]})
    found = subnets.differences(ours, base, "accuracy")
    assert list(found.index) == [0, 1] and np.allclose(found, [0.6 - 0.2, 0.4 - 0.1])


def test_the_likest_configuration_is_found():
    rows = [
        synthetic_ist.record(method="sequential", workers=1, seed=seed, lr=lr)
        for seed in range(2)
        for lr in (0.05, 0.1)
    ]
    runs = subnets.described(synthetic.runs(rows))
    found = subnets.like(runs[runs["lr"] == 0.1].iloc[0], runs, ["dataset", "skew"], ["lr", "minibatch"])
    assert len(found) == 2 and set(found["lr"]) == {0.1}
    assert not len(subnets.like(runs.iloc[0], runs[runs["dataset"] == "none"], ["dataset"], ["lr"]))


def test_what_tells_experiments_apart_is_part_of_a_configuration():
    given = {
        "server",
        "partition",
        "redraw",
        "overlap",
        "lost_steps",
        "skew",
        "memory_limit_bytes",
        "variant",
        "passes",
    }
    assert given <= set(CONFIGURATION) <= set(as_runs(None).columns)


def test_a_run_that_does_not_fit_is_a_result_that_did_not_train():
    assert OVER_MEMORY not in ENDED and OVER_MEMORY not in BROKEN


def test_speech_is_frames_of_utterances_not_spoken_keywords():
    words = synthetic.speech_record(decode=False)
    lost = synthetic.speech_record(seed=9, status="diverged", reason="loss is nan")
    keywords = synthetic_ist.record()
    runs = synthetic.runs([words, lost, keywords])
    assert runs["data_kind"].notna().all()
    assert list(is_speech(runs)) == [True, True, False]  # the diverged run's corpus is known from the other
    assert list(is_speech(runs[:0])) == []
