"""Pieces of the report: cells and tables as text, figures as inline SVG."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup, escape

GB, MB = 1e9, 1e6


def number(value: Any) -> str:
    """A number with four significant digits, thousands apart; an absent one is a dash."""
    if value is None or pd.isna(value):
        return "-"
    value = float(value)
    if np.isinf(value):
        return "never" if value > 0 else "-inf"
    if value == round(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def brief(value: Any) -> str:
    """A number with three significant digits, trailing zeros kept (1.90, 15.1, 143); an absent one is a dash."""
    if value is None or pd.isna(value) or np.isinf(value) or value == 0 or not 1e-4 <= abs(value) < 1e5:
        return number(value if value is None or pd.isna(value) or np.isinf(value) else float(f"{value:.3g}"))
    value = float(f"{float(value):.3g}")
    return f"{value:,.{max(0, 2 - int(np.floor(np.log10(abs(value)))))}f}"


def text(value: Any) -> str:
    """Any cell as text."""
    if value is None or (not isinstance(value, (list, np.ndarray)) and pd.isna(value)):
        return "-"
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, (int, float, np.integer, np.floating)):
        return number(value)
    return str(value)


def scaled(factor: float) -> Callable[[Any], str]:
    """A formatter of numbers in units of ``factor``."""
    return lambda value: "-" if pd.isna(value) else number(float(value) / factor)


def percent(value: Any) -> str:
    """A share as per cent."""
    return "-" if pd.isna(value) else f"{100 * float(value):.1f}"


def milliseconds(value: Any) -> str:
    """Seconds in milliseconds, short."""
    return "-" if pd.isna(value) else brief(1e3 * float(value))


def minutes(value: Any) -> str:
    """Minutes to hundredths."""
    return "-" if pd.isna(value) else f"{round(float(value), 2) + 0.0:.2f}"  # + 0.0: no minus before a zero


def tenths(value: Any) -> str:
    """A number, such as a percentage, to tenths."""
    return "-" if pd.isna(value) else f"{round(float(value), 1) + 0.0:.1f}"


# Column of a table file -> its heading in the report and how its cells are written.
HEADINGS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "data_size": ("samples", number),
    "model_params": ("parameters", number),
    "threads_per_worker": ("threads", number),
    "oversubscribed": ("more workers than cores", text),
    "minibatch": ("minibatch per worker", number),
    "global_batch": ("global batch", number),
    "sync_period": ("K", number),
    "local_steps": ("J", number),
    "lr": ("rate", number),
    "lr_scaling": ("rate scaling", text),
    "n": ("n", number),
    "seconds": ("training (s)", number),
    "seconds_low": ("low (s)", number),
    "seconds_high": ("high (s)", number),
    "samples_per_s": ("samples/s", number),
    "time_to_target_s": ("to target (s)", number),
    "base_seconds": ("base (s)", number),
    "base_threads": ("base threads", number),
    "speedup": ("speedup (x)", number),
    "speedup_low": ("low (x)", number),
    "speedup_high": ("high (x)", number),
    "wall_s": ("wall (s)", number),
    "data_s": ("data (s)", number),
    "compute_s": ("compute (s)", number),
    "comm_s": ("comm. (s)", number),
    "eval_s": ("eval. (s)", number),
    "other_s": ("other (s)", number),
    "uncovered_s": ("not covered (s)", number),
    "comm_share": ("comm. of training (%)", percent),
    "train_loss": ("training loss", number),
    "payload_bytes": ("payload per worker (MB)", scaled(MB)),
    "sent_bytes_total": ("sent, all workers (MB)", scaled(MB)),
    "sent_bytes_predicted": ("closed form (MB)", scaled(MB)),
    "matches_closed_form": ("equal to the byte", text),
    "sent_bytes_per_worker": ("sent per worker (MB)", scaled(MB)),
    "sent_bytes_max_worker": ("busiest worker (MB)", scaled(MB)),
    "paper_bytes": ("paper's count (MB)", scaled(MB)),
    "state_bytes_per_worker": ("state per worker (MB)", scaled(MB)),
    "measured_s": ("measured step (ms)", scaled(1e-3)),
    "measured_low_s": ("least (ms)", scaled(1e-3)),
    "measured_high_s": ("greatest (ms)", scaled(1e-3)),
    "measured_ms": ("measured step (ms)", text),
    "predicted_s": ("predicted step (ms)", scaled(1e-3)),
    "median_error": ("median error (%)", percent),
    "worst_error": ("worst error (%)", percent),
    "worst_group": ("worst point", text),
    "group": ("point", text),
    "error": ("error (%)", percent),
    "pace": ("pace: time of a fixed step over that in calibration", brief),
    "error_at_pace": ("error at that pace (%)", percent),
    "median_error_at_pace": ("median at the pace (%)", percent),
    "worst_error_at_pace": ("worst at the pace (%)", percent),
    "compute_source": ("computation from", text),
    "base": ("compared with", text),
    "word_errors": ("word error (%)", text),
    "frame_errors": ("frame error (%)", text),
    "lost": ("against one worker (points)", text),
    "base_lr": ("rate of that one worker", number),
    "printed": ("paper: SWB / CallHome (%)", text),
    "edits": ("subst. / del. / ins.", text),
    "own_of_worker_0": ("worker 0 alone: word / frame (%)", text),
    "drift": ("drift (%)", percent),
    "max_change_rule": ("max-change rule", text),
    "reduction": ("rate times", text),
    "wer": ("word error (%)", percent),
    "wer_low": ("low (%)", percent),
    "wer_high": ("high (%)", percent),
    "frame_error": ("frame error (%)", percent),
    "frame_error_low": ("low (%)", percent),
    "frame_error_high": ("high (%)", percent),
    "valid_frame_error": ("validation frame error (%)", percent),
    "rank0_wer": ("word error of worker 0 (%)", percent),
    "rank0_frame_error": ("frame error of worker 0 (%)", percent),
    "published_swb": ("paper: SWB (%)", percent),
    "published_callhome": ("paper: CallHome (%)", percent),
    "wer_minus_one_worker": ("against one worker (points)", percent),
    "wer_minus_one_worker_low": ("low (points)", percent),
    "wer_minus_one_worker_high": ("high (points)", percent),
    "share": ("comm. of training (%)", percent),
    "share_low": ("low (%)", percent),
    "share_high": ("high (%)", percent),
    "worker_params": ("parameters per worker", number),
    "worker_share": ("share of the network (%)", percent),
    "server_bytes": ("stored for others (MB)", scaled(MB)),
    "resident_bytes": ("resident memory, growth (MB)", scaled(MB)),
    "memory_limit_bytes": ("limit per worker (MB)", scaled(MB)),
    "held_bytes": ("held per worker (MB)", scaled(MB)),
    "target_value": ("target", number),
    "p_at_1": ("P@1", number),
    "p_at_3": ("P@3", number),
    "p_at_5": ("P@5", number),
    "mbit_s": ("Mbit/s", brief),
    "units_per_worker": ("units per worker", number),
    "width": ("units of a hidden layer", number),
    "skew": ("concentration of labels", number),
    "lost_steps": ("loses steps", text),
    "passes": ("passes over the data in an epoch", number),
    "eval_size": ("samples scored", number),
    "reached_of": ("seeds at the target", text),
    "steps_spent": ("steps to the target", text),
    "bytes_spent": ("sent to the target (MB)", text),
    "byte_ratios": ("bytes, data parallel : local SGD : IST", text),
    "crossing": ("equally fast at (Mbit/s)", text),
    "crossing_mbit_s": ("lead changes at (Mbit/s)", brief),
    "over_seeds": ("range over seeds (Mbit/s)", text),
    "under_errors": ("if the model of time errs (Mbit/s)", text),
    "first_error": ("error of the first's time (%)", percent),
    "second_error": ("error of the second's time (%)", percent),
    "time_told": ("to target (s)", text),
    "second_time": ("second's time (s)", brief),
    "margin": ("ahead by (%)", percent),
    "band": ("model may err by (%)", percent),
    "faster_below": ("faster on slower networks", text),
    "faster_above": ("faster on quicker networks", text),
    "points_lost": ("points lost", text),
    "threshold_units": ("threshold (units per worker)", text),
    "precisions": ("P@1 / P@3 / P@5 (%)", text),
    "error_low": ("low (%)", percent),
    "error_high": ("high (%)", percent),
    "comm_step_s": ("comm. per step (ms)", scaled(1e-3)),
    "low_s": ("low (ms)", scaled(1e-3)),
    "high_s": ("high (ms)", scaled(1e-3)),
    "sent_bytes_step": ("sent per worker and step (MB)", scaled(MB)),
    "closed_form_bytes_per_worker": ("closed form per worker (MB)", scaled(MB)),
    "published_epoch_min": ("epoch, published (min)", minutes),
    "fitted_epoch_min": ("epoch, fitted (min)", minutes),
    "published_speedup": ("speedup, published (x)", minutes),
    "fitted_speedup": ("speedup, fitted (x)", minutes),
    "published_mpi_min": ("MPI, published (min)", minutes),
    "fitted_mpi_min": ("MPI, fitted (min)", minutes),
    "epoch_min": ("epoch (min)", minutes),
    "minutes": ("minutes", minutes),
    "share_of_lost": ("of lost (%)", percent),
    "pct_of_epoch": ("of the epoch (%)", tenths),
    "lost_min": ("lost (min)", minutes),
    "slower_program_min": ("slower program (min)", minutes),
    "serial_part_min": ("not divided (min)", minutes),
    "communication_min": ("communication (min)", minutes),
    "waiting_for_the_slowest_min": ("waiting for the slowest (min)", minutes),
    "slower_steps_min": ("slower steps (min)", minutes),
    "whole_steps_min": ("whole steps (min)", minutes),
    "slower_program_pct": ("slower program (% of lost)", tenths),
    "serial_part_pct": ("not divided (% of lost)", tenths),
    "communication_pct": ("communication (% of lost)", tenths),
    "params": ("parameters", number),
    "image": ("image side", number),
    "samples_error": ("error of images/s (%)", percent),
    "bytes_error": ("error of bytes (%)", percent),
    "published_samples_per_s": ("images/s, published", number),
    "published_paper_bytes": ("paper's count, published (MB)", scaled(MB)),
    "network_bytes": ("sent in a step, all devices (MB)", scaled(MB)),
    "state_bytes_max": ("state, fullest device (MB)", scaled(MB)),
    "step_s": ("step (ms)", milliseconds),
    "additive_s": ("step, added up (ms)", milliseconds),
    "additive_error": ("error, added up (%)", percent),
    "objective_s": ("objective (ms)", milliseconds),
    "transfer_s": ("transfers (ms)", milliseconds),
    "sync_s": ("synchronisation (ms)", milliseconds),
    "overlap_s": ("overlapped (ms)", milliseconds),
    "layer_s": ("computation and synchronisation (ms)", milliseconds),
    "published_s": ("published (s)", brief),
    "search_s": ("search (s)", brief),
    "search_seconds": ("search (s)", text),
    "search_low_s": ("low (s)", brief),
    "search_high_s": ("high (s)", brief),
    "tables_s": ("tables of costs (s)", brief),
    "cost_s": ("cost found (ms)", milliseconds),
    "remaining": ("nodes left", number),
    "layer_params": ("parameters", number),
    "worst_deviation": (
        "largest deviation (%)",
        lambda value: "-" if pd.isna(value) else f"{100 * value:.2g}",
    ),
    "base_valid_loss": ("validation loss, one device", brief),
    "valid_loss": ("validation loss", brief),
    "base_accuracy": ("accuracy, one device", number),
    "base_global_batch": ("base's global batch", number),
    "speedup_told": ("speedup (x)", text),
    "seconds_told": ("training (s)", text),
    "accuracy_told": ("test accuracy (%)", text),
    "jobs_per_step": ("jobs a step", number),
    "barrier_step_s": ("step, barrier (ms)", milliseconds),
    "jobs_step_s": ("step, jobs (ms)", milliseconds),
    "barrier_exchange_s": ("exchange, barrier (ms)", milliseconds),
    "jobs_exchange_s": ("exchange, jobs (ms)", milliseconds),
    "exchange_ratio": ("exchanges, jobs over barrier (x)", brief),
    "step_ratio": ("steps, jobs over barrier (x)", brief),
    "schedule_share": ("scheduling, of a step by jobs (%)", percent),
    "serialise_share": ("serialisation, of a step by jobs (%)", percent),
    "alone_bytes": ("one worker would need (MB)", scaled(MB)),
    "memory_bytes": ("memory of the machine (MB)", scaled(MB)),
    "step_bytes": ("sent in a step (bytes)", number),
    "expected_bytes": ("closed form (bytes)", number),
    "staleness": ("late by at most (updates)", number),
    "staleness_mean": ("late by, mean", number),
    "staleness_max": ("late by, most", number),
    "synchronous_accuracy": ("synchronous (%)", percent),
    "least_steps_per_job": ("fewest steps between exchanges", number),
    "simulation_step_s": ("simulating a step (ms)", milliseconds),
    "simulation_worker_step_s": (
        "simulating a worker's step (\N{MICRO SIGN}s)",
        lambda value: "-" if pd.isna(value) else brief(1e6 * value),
    ),
    "simulation_bytes": ("memory it took (MB)", scaled(MB)),
    "simulation_bytes_predicted": ("memory predicted (MB)", scaled(MB)),
    "simulation_bytes_ratio": ("measured over predicted (x)", brief),
    "efficiency": ("efficiency (%)", percent),
    "ours_s": ("ours (ms)", milliseconds),
    "reference_s": ("reference (ms)", milliseconds),
    "ratio_low": ("low", brief),
    "ratio_high": ("high", brief),
    "ratio": ("ratio", brief),
}
# Columns that one paper's section does not need.
LEFT_OUT = ("paper", "run_id")
# Where all rows agree on one of these, it is said once above the table.
SAID_ONCE = (
    "evidence", "cluster", "dataset", "data_size", "model", "model_params", "scaling", "minibatch", "epochs", "lr",
    "metric", "spread", "threads_per_worker", "data_kind", "optimizer", "max_change_rule", "reduction", "momentum",
    "ng_update_period", "init", "schedule", "settings", "method", "mixing", "content", "lr_scaling", "sync_period",
    "reference_words", "epochs_done", "diverged", "formula", "local_steps", "variant", "server", "partition", "redraw",
    "overlap", "lost_steps", "sharding", "passes", "memory_limit_bytes", "target_value", "hidden_layers", "plain_model",
    "sync", "objective", "degrees", "compute_source", "image", "experiments", "time_limit_s", "global_batch", "kind",
    "execution", "cut", "group_size", "staleness", "precision", "steps", "base", "oversubscribed", "eval_size",
)  # fmt: skip
# Values that go without saying: a column of nothing else is left out.
UNSAID = {"variant": "default", "passes": 1, "cut": "auto", "group_size": 0, "staleness": 0}


@dataclass(frozen=True)
class Table:
    """A table ready for the page: headings, and rows of (text, whether it is a number)."""

    headings: list[str]
    rows: list[list[tuple[str, bool]]]
    command: str
    left_out: int
    common: str  # what all rows share, in words


def table_of(frame: pd.DataFrame, leave_out: tuple[str, ...] = LEFT_OUT, most_rows: int = 400) -> Table:
    """A frame as the page shows it: columns without any value are left out.

    What all rows share is said once: the command below the table, ``SAID_ONCE`` above it.
    """
    commands = list(dict.fromkeys(frame["command"].dropna())) if "command" in frame else []
    hidden = {*leave_out, *(["command"] if len(commands) < 2 else [])}
    names = [name for name in frame.columns if name not in hidden and (_says(frame, name) or not len(frame))]
    shared = [
        name
        for name in names
        if name in SAID_ONCE and len(frame) > 1 and frame[name].nunique(dropna=False) == 1
    ]
    common = "; ".join(f"{_heading(name)[0]}: {_heading(name)[1](frame[name].iloc[0])}" for name in shared)
    names = [name for name in names if name not in shared]
    shown = frame[names].head(most_rows)
    rows = []
    for row in shown.to_dict("records"):
        cells = []
        for name in names:
            write = _heading(name)[1]
            value = row[name]
            cells.append(
                (write(value), isinstance(value, (int, float, np.number)) and not isinstance(value, bool))
            )
        rows.append(cells)
    headings = [_heading(name)[0] for name in names]
    return Table(headings, rows, commands[0] if len(commands) == 1 else "", len(frame) - len(shown), common)


def _says(frame: pd.DataFrame, name: str) -> bool:
    """Whether a column has a value that does not go without saying."""
    values = frame[name].dropna()
    return bool(len(values)) and not (name in UNSAID and (values == UNSAID[name]).all())


def _heading(name: str) -> tuple[str, Callable[[Any], str]]:
    return HEADINGS.get(name, (name.replace("_", " "), text))


_SVG_OPEN = re.compile(r"<svg\b[^>]*>", re.DOTALL)


def inline_svg(path: Path, alt: str, prefix: str) -> Markup:
    """A figure's SVG for the page: its ids made unique by ``prefix``, named by ``alt``, sized by its container."""
    source = path.read_text(encoding="utf-8")
    opening = _SVG_OPEN.search(source)
    if opening is None:
        raise ValueError(f"{path} holds no SVG")
    body = source[opening.end() :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    for before, after in (
        (r'\bid="', f'id="{prefix}-'),
        (r'href="#', f'href="#{prefix}-'),
        (r"url\(#", f"url(#{prefix}-"),
    ):
        body = re.sub(before, after, body)
    body = re.sub(r"\n\s*", " ", body)
    box = re.search(r'viewBox="([^"]+)"', opening.group(0))
    width = float(box.group(1).split()[2]) if box else 400.0
    # points are 4/3 pixels; below 0.6 of its own size a figure scrolls instead of shrinking further
    style = f"min-width:{width * 0.8:.0f}px;max-width:{width * 4 / 3:.0f}px"
    head = f'<svg viewBox="{box.group(1) if box else ""}" role="img" aria-labelledby="{prefix}-title" style="{style}">'
    return Markup(f'{head}<title id="{prefix}-title">{escape(alt)}</title>{body}')
