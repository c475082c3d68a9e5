import numpy as np
import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from implementations import fitted
from implementations.reporting import losses, tables
from implementations.reporting.claims import load_published
from implementations.reporting.figures.loss import VISIBLE, loss_figure
from tests.reporting import synthetic


@pytest.fixture(scope="module")
def published():
    return load_published()


@pytest.fixture(scope="module")
def drawn(published):
    return loss_figure(published, synthetic.losses(), "averaging")


def test_a_row_of_the_table_holds_all_parts_of_a_loss():
    table = losses.loss_table(synthetic.losses())
    assert list(table.columns) == losses.LOSS_TABLE_COLUMNS
    row = table[(table["workers"] == 16) & (table["sync_period"] == 10)].iloc[0]
    parts = [row[f"{part.replace(' ', '_')}_min"] for part in losses.MODEL_PARTS]
    assert sum(parts) == pytest.approx(row["lost_min"])
    assert row["communication_pct"] == pytest.approx(100 * parts[0] / row["lost_min"])
    assert set(table["evidence"]) == {"projected"} and set(table["paper"]) == {"averaging"}


def test_the_constants_stand_beside_the_numbers_they_were_fitted_to(published):
    table = losses.fitted_table(published)
    assert set(table["evidence"]) == {"fitted"}
    assert table["formula"].unique() == [fitted.fit(fitted.scaling_table(published)).formula()]
    assert_frame_equal(
        table[["fitted_epoch_min", "lost_min"]], fitted.reading(published)[["fitted_epoch_min", "lost_min"]]
    )


def test_evidence_has_a_table_each(published):
    made = tables.make_tables_in_memory(
        synthetic.runs([]), None, published=published, losses=synthetic.losses()
    )
    assert made["fitted"]["evidence"].unique() == ["fitted"]
    assert made["loss"]["evidence"].unique() == ["projected"]


@pytest.mark.parametrize("numbers", [None, pd.DataFrame(), synthetic.published()])
def test_without_the_timing_table_nothing_is_fitted(numbers):
    table = losses.fitted_table(numbers)
    assert not len(table) and list(table.columns) == losses.FITTED_COLUMNS
    assert losses.sentence(table, losses.loss_table(None)) == ""
    assert loss_figure(numbers, synthetic.losses(), "averaging") is None


def test_the_sentence_is_worked_out_from_the_tables(published):
    told = losses.sentence(losses.fitted_table(published), losses.loss_table(synthetic.losses()))
    # 27.25 - 254.5/16 = 11.34 minutes, of which 4.25 are communication
    assert "On 16 GPUs at K=10" in told and "11.3 minutes more" in told
    assert "37 % of that is communication and 63 % is not" in told
    assert (
        "As projected on stampede-k20 it takes 2.0 minutes more, 75 % of it communication and 25 % not"
        in told
    )
    alone = losses.sentence(losses.fitted_table(published), losses.loss_table(None))
    assert "projected" not in alone
    all_of_it = synthetic.losses(slower=0.0)
    told = losses.sentence(losses.fitted_table(published), losses.loss_table(all_of_it))
    assert told.endswith("it takes 1.5 minutes more, all of it communication.")


def heights(axes):
    """Height of each bar's parts, by part's name."""
    return {bars.get_label(): [bar.get_height() for bar in bars] for bars in axes.containers}


def test_bars_are_the_lost_efficiency(drawn, published):
    left, right = drawn.figure.axes
    total = np.sum(list(heights(left).values()), axis=0)
    reading = fitted.reading(published).sort_values(["sync_period", "workers"])
    efficiency = 254.5 / (reading["workers"] * reading["fitted_epoch_min"]).astype(float)
    assert np.allclose(total, 100 * (1 - efficiency), atol=3 * VISIBLE)
    # the projection's own, at the same numbers of GPUs and periods only
    assert len(right.containers[0]) == len(reading)
    assert set(heights(right)) == {"communication", "slower steps"}
    assert left.get_ylim() == right.get_ylim() and left.get_ylim()[1] > total.max()


def test_kinds_of_evidence_have_a_plot_each_and_communication_one_look(drawn):
    left, right = drawn.figure.axes
    assert "fitted" in left.get_title() and "projected" in right.get_title()
    looks = {
        (bar.get_facecolor(), bar.get_hatch())
        for axes in (left, right)
        for bars in axes.containers
        if bars.get_label() == "communication"
        for bar in bars
    }
    assert len(looks) == 1
    assert drawn.caption.startswith("Evidence: left, fitted") and drawn.section == "loss"
    names = [text.get_text() for text in left.get_xticklabels()]
    assert names == ["2", "4", "8", "16", "32", "16\nK=20"] == [t.get_text() for t in right.get_xticklabels()]


def test_without_a_projection_its_plot_says_so(published):
    right = loss_figure(published, None, "averaging").figure.axes[1]
    assert [text.get_text() for text in right.texts] == ["no projection here"]


def test_what_is_gained_hangs_below_zero(published):
    right = loss_figure(published, synthetic.losses(slower=-0.5), "averaging").figure.axes[1]
    slower = next(bars for bars in right.containers if bars.get_label() == "slower steps")
    assert all(bar.get_y() == 0 and bar.get_height() < 0 for bar in slower)
