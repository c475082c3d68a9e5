"""The figures of layer-wise parallelism: what they draw, and that they do without what is not there."""

import matplotlib
import pandas as pd
import pytest
from matplotlib.patches import FancyBboxPatch

from implementations.reporting.claims import load_published
from implementations.reporting.figures import layerwise_plan, style
from implementations.reporting.figures.layerwise import layerwise_figures
from implementations.reporting.figures.layerwise_devices import BYTES, THROUGHPUT, devices_data
from implementations.reporting.figures.layerwise_lines import network_name
from implementations.reporting.figures.layerwise_sizes import sizes_data
from implementations.reporting.plans import as_plans, as_searches, described, layers_of
from tests.reporting import synthetic
from tests.reporting import synthetic_layerwise as made_up
from tests.reporting.conftest import ROOT

NAMES = [
    "layerwise_throughput", "layerwise_bytes", "layerwise_plan", "layerwise_plan_branches", "layerwise_search",
    "layerwise_growth", "layerwise_prediction", "layerwise_training", "layerwise_degrees", "layerwise_links",
    "layerwise_sizes", "time_split",
]  # fmt: skip


@pytest.fixture(scope="module")
def published():
    return load_published(ROOT / "config")


@pytest.fixture(scope="module")
def plans():
    return described(made_up.plans(), made_up.LINKS)


@pytest.fixture(scope="module")
def every(plans, published, tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    rows = made_up.records()
    made_up.curves(rows, folder)
    made = layerwise_figures(synthetic.runs(rows), plans, made_up.searches(), published, folder, "layerwise")
    assert [figure.name for figure in made] == NAMES
    return {figure.name: figure for figure in made}


def test_nothing_is_drawn_of_nothing(published, tmp_path):
    empty = described(as_plans(None))
    made = layerwise_figures(synthetic.runs([]), empty, as_searches(None), published, tmp_path, "layerwise")
    assert made == []


def test_plans_alone_have_their_figures(plans, published, tmp_path):
    own = plans[plans["model"] == "vgg16"]
    made = layerwise_figures(synthetic.runs([]), own, as_searches(None), published, tmp_path, "layerwise")
    assert [figure.name for figure in made] == ["layerwise_throughput", "layerwise_bytes", "layerwise_plan"]


def test_without_published_numbers_there_are_no_stars(plans, tmp_path):
    none = pd.DataFrame()
    made = layerwise_figures(synthetic.runs([]), plans, made_up.searches(), none, tmp_path, "layerwise")
    assert made[0].data["published"].isna().all() and "published" not in str(made[0].figure.legends[0])


def test_figures_say_what_they_show(every):
    for drawn in every.values():
        assert drawn.title and drawn.alt and drawn.caption.startswith("Evidence: ")
        assert drawn.paper == "layerwise" and drawn.command == "snakemake --cores all layerwise"
        assert len(drawn.data)


def test_letters_are_as_large_as_elsewhere(every):
    for drawn in every.values():
        drawn.figure.draw_without_rendering()
        sizes = [
            text.get_fontsize() for text in drawn.figure.findobj(matplotlib.text.Text) if text.get_text()
        ]
        ticks = [size for size in sizes if size < style.SMALLEST_FONT - 0.01]
        # exponents of a logarithmic axis aside
        assert not ticks, drawn.name


def test_a_strategy_has_one_colour_everywhere(every):
    wanted = {tint.lower(): name for name, tint in style.STRATEGY_COLOURS.items()}
    assert len(wanted) == len(style.STRATEGY_COLOURS)
    for name in ("layerwise_throughput", "layerwise_links"):
        for axes in every[name].figure.axes:
            for line in axes.lines:
                if line.get_label() in style.STRATEGY_COLOURS:
                    assert wanted[line.get_color().lower()] == line.get_label()
    assert style.STRATEGY_COLOURS["layerwise"] == style.METHOD_COLOURS["layerwise"]
    assert style.STRATEGY_COLOURS["data"] == style.METHOD_COLOURS["data_parallel"]


def test_throughput_beside_the_bars(every, plans, published):
    data = every["layerwise_throughput"].data
    assert set(data["evidence"]) == {"projected"} and len(data) == 3 * (1 + 4 * 4)
    row = data[(data["model"] == "vgg16") & (data["strategy"] == "data") & (data["workers"] == 16)].iloc[0]
    assert row["published"] == 1660 and row["error"] == pytest.approx(row["value"] / 1660 - 1)
    moved = devices_data(plans, published, BYTES)
    row = moved[
        (moved["model"] == "inception_v3") & (moved["strategy"] == "owt") & (moved["workers"] == 8)
    ].iloc[0]
    assert row["published"] == pytest.approx(1.328)
    # the same batch a device throughout
    assert len(devices_data(plans, published, THROUGHPUT)) == len(moved) == len(data)


def test_axes_have_units(every):
    for name, text in (("layerwise_throughput", "images/s"), ("layerwise_bytes", "GiB"),
                       ("layerwise_search", "seconds"), ("layerwise_links", "(x)")):  # fmt: skip
        assert text in every[name].figure.axes[0].get_ylabel()


def test_searches_that_were_cut_off_are_marked(every):
    marks = [line for line in every["layerwise_search"].figure.axes[0].lines if line.get_marker() == "^"]
    assert len(marks) == 2 * 4  # two algorithms on all networks but the smallest
    assert "cut off after 60 s" in every["layerwise_search"].caption


def test_a_chain_has_a_box_for_each_layer(every):
    drawn = every["layerwise_plan"]
    boxes = [patch for patch in drawn.figure.axes[0].patches if isinstance(patch, FancyBboxPatch)]
    assert len(boxes) == len(drawn.data) == 24
    texts = [text.get_text() for text in drawn.figure.axes[0].texts]
    assert texts.count("h=2 w=2") == 4 and texts.count("c=4") == 2 and "conv  512x14x14" in texts


def test_boxes_of_a_drawing_do_not_overlap(every):
    for name in ("layerwise_plan", "layerwise_plan_branches"):
        axes = every[name].figure.axes[0]
        boxes = [
            patch.get_path().get_extents() for patch in axes.patches if isinstance(patch, FancyBboxPatch)
        ]
        assert len(boxes) > 20
        for k, one in enumerate(boxes):
            for other in boxes[:k]:
                assert not one.overlaps(other)
            low, high = axes.get_xlim()
            assert low <= one.x0 and one.x1 <= high


def test_text_fits_its_box(every):
    for name in ("layerwise_plan", "layerwise_plan_branches"):
        figure = every[name].figure
        figure.draw_without_rendering()
        axes = figure.axes[0]
        boxes = [patch.get_window_extent() for patch in axes.patches if isinstance(patch, FancyBboxPatch)]
        for text in axes.texts:
            extent = text.get_window_extent()
            middle = ((extent.x0 + extent.x1) / 2, (extent.y0 + extent.y1) / 2)
            box = next(box for box in boxes if box.contains(*middle))
            assert box.x0 <= extent.x0 and extent.x1 <= box.x1, text.get_text()


def test_chains_of_one_configuration_share_a_box():
    chain = [
        {"layer": name, "kind": kind, "inputs": inputs, "degrees_text": text}
        for name, kind, inputs, text in (
            ("input", "input", [], "n=4"),
            ("a", "conv", ["input"], "n=4"),
            ("b", "conv", ["a"], "n=4"),
            ("c", "conv", ["b"], "c=4"),
            ("d", "conv", ["b"], "n=4"),
            ("join", "concat", ["c", "d"], "n=4"),
        )
    ]
    assert [box.text for box in layerwise_plan.boxes_of(chain)] == ["input"] + ["conv"] * 4 + ["concat"]
    grown = chain + [
        {"layer": f"e{k}", "kind": "conv", "inputs": [f"e{k - 1}" if k else "join"], "degrees_text": "n=4"}
        for k in range(layerwise_plan.MOST_BOXES)
    ]
    boxes = layerwise_plan.boxes_of(grown)
    # b has two readers, so that what follows it is no chain
    assert [box.text for box in boxes] == ["input", "2 conv", "conv", "conv", "concat", "40 conv"]
    assert [box.inputs for box in boxes] == [[], [0], [1], [1], [2, 3], [4]]
    assert [box.level for box in boxes] == [0, 1, 2, 2, 3, 4]


def test_columns_are_cut_where_one_box_leads_on():
    boxes = layerwise_plan.boxes_of(
        [{"layer": "0", "kind": "conv", "inputs": [], "degrees_text": ""}]
        + [
            {"layer": str(k), "kind": "conv", "inputs": [str(k - 1)], "degrees_text": ""}
            for k in range(1, 20)
        ]
    )
    assert [len(column) for column in layerwise_plan.columns_of(boxes, 8)] == [8, 8, 4]


def test_predictions_are_apart_from_what_has_too_few_cores(every):
    drawn = every["layerwise_prediction"]
    assert "14 of 18 configurations are within it" in drawn.caption
    assert "with as many cores as ranks errors are -2.0 to -2.0 %" in drawn.caption


def test_the_number_of_devices_of_the_first_linear_layer_stands_by_the_line(every):
    drawn = every["layerwise_links"]
    assert [text.get_text() for text in drawn.figure.axes[0].texts] == ["4"] * 3
    found = drawn.data[drawn.data["strategy"] == "layerwise"].sort_values("mbit_s")
    assert found["over_data"].is_monotonic_decreasing


def test_images_have_rows_and_widths_columns(plans):
    own = sizes_data(plans)
    assert len(own) == 2 * 2 * 3 * 2 and own["gain"].gt(1).all()
    named = plans.assign(model=plans["model"].where(plans["image"] != 64, plans["model"] + "_image64"))
    assert set(sizes_data(named)["model"]) == set(own["model"])


def test_trainings_lie_on_each_other(every):
    data = every["layerwise_training"].data
    assert data["strategy"].nunique() == 5 and data["model"].nunique() == 3
    assert data["deviation"].max() < 1e-5
    assert (data.loc[data["strategy"] == "single", "deviation"] == 0).all()


def test_ranks_are_told_apart_by_strategy(every):
    labels = every["time_split"].data["label"]
    assert labels.is_unique and every["time_split"].section == "time"


def test_names_of_networks():
    assert network_name("alexnet_fc_input12544") == "AlexNet, FC input 12544"
    assert network_name("vgg16_image64_width0.5") == "VGG-16, 64 px width 0.5"
    assert network_name("vgg_small") == "VGG, small"
    assert network_name("mine") == "mine"


def test_the_same_data_gives_the_same_bytes(plans, tmp_path):
    layers = layers_of(plans[plans["model"] == "vgg16"])
    saved = []
    for folder in ("a", "b"):
        (drawn,) = layerwise_plan.plan_figures(layers, "layerwise")
        style.save(drawn, tmp_path / folder)
        saved.append((tmp_path / folder / "layerwise_plan.svg").read_bytes())
    assert saved[0] == saved[1]
