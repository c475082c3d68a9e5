import io
import json
import re
from html.parser import HTMLParser

import pandas as pd
import pyarrow.parquet as pq
import pytest
from markupsafe import escape

from implementations.reporting import figures, html, make_report, make_tables, summarise
from implementations.reporting.collect import collect
from implementations.reporting.columns import to_table
from implementations.reporting.verdicts import COLUMNS
from tests.reporting import synthetic

VOID = {"meta", "br", "img", "link", "hr", "input"}


class Page(HTMLParser):
    """Collects what a page refers to, its ids and headings; checks that tags nest."""

    def __init__(self, source):
        super().__init__()
        self.references, self.ids, self.headings, self.open, self.text = [], [], [], [], []
        self.tags = []
        self.feed(source)
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append((tag, attributes))
        self.references += [
            (tag, k, v) for k, v in attributes.items() if k.split(":")[-1] in ("src", "href", "srcset")
        ]
        self.ids += [attributes["id"]] if "id" in attributes else []
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_is_self_contained_and_well_formed(made):
    page = Page(made.source)
    assert page.references
    for tag, key, value in page.references:
        # places in the page, and plain links to papers
        assert value.startswith("#") or (
            tag == "a" and key == "href" and value.startswith("https://arxiv.org/")
        ), value
    assert not {"script", "link", "iframe", "object", "embed"} & {tag for tag, _ in page.tags}
    assert not re.search(r"@import|url\((?!#)", made.source)
    assert "<metadata" not in made.source and "http://" not in made.source


def test_ids_are_unique_and_links_lead_somewhere(made):
    page = Page(made.source)
    assert len(page.ids) == len(set(page.ids))
    targets = {value[1:] for _, _, value in page.references if value.startswith("#")}
    assert targets <= set(page.ids)
    assert set(re.findall(r"url\(#([^)]+)\)", made.source)) <= set(page.ids)


def test_the_page_can_be_read_aloud(made):
    page = Page(made.source)
    assert ("html", {"lang": "en"}) in page.tags
    assert page.headings[0] == 1 and page.headings.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(page.headings, page.headings[1:], strict=False))
    drawings = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert len(drawings) == len(made.index) == 30
    assert all(drawing["role"] == "img" and drawing["aria-labelledby"] in page.ids for drawing in drawings)
    assert all(attributes.get("scope") in ("col", "rowgroup") for tag, attributes in page.tags if tag == "th")
    assert "model averaging, measured: 1.61 x at 4 workers" in made.source


def test_claims_come_first_and_each_has_verdict_and_command(made):
    folder, source = made.folder, made.source
    claims = pd.read_parquet(folder / "reports/tables/claims.parquet")
    assert source.index('id="claims"') < source.index('id="paper-averaging"') < source.index('id="failures"')
    for claim_id in {name.split("/")[0] for name in claims["claim_id"]}:
        assert claim_id in source
    for verdict in set(claims["verdict"]):
        assert re.search(rf'<span class="verdict \w+">\S+ {re.escape(verdict)}</span>', source)
    assert "snakemake --cores all averaging" in source


def lines_of_claim(source, claim_id):
    """The cells of a claim's lines."""
    body = next(
        body
        for body in re.findall(r"<tbody>.*?</tbody>", source, re.DOTALL)
        if f"<code>{claim_id}</code>" in body
    )
    rows = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in rows[1:]]
    return body, [[re.sub("<[^>]+>", "", cell).replace("\xa0", " ") for cell in row] for row in cells]


def test_a_claim_is_stated_once_with_a_line_for_each_number(made):
    claims = pd.read_parquet(made.folder / "reports/tables/claims.parquet")
    judged = claims[~claims["verdict"].isin(["not run", "not comparable here"])]
    assert {name.split("/")[0] for name in judged["claim_id"]}
    for claim_id, rows in judged.groupby(judged["claim_id"].str.split("/").str[0]):
        body, lines = lines_of_claim(made.source, claim_id)
        assert body.count(str(escape(rows["statement"].iloc[0]))) == 1
        assert [line[4] for line in lines] == list(rows["evidence"] + rows["dataset"].fillna(""))
        assert [line[5].split(" ", 1)[1] for line in lines] == list(rows["verdict"])
    waiting = claims[(claims["verdict"] == "not run") & claims["ours"].isna()]
    for claim_id, rows in waiting.groupby(waiting["claim_id"].str.split("/").str[0]):
        assert made.source.count(f"<code>{claim_id}</code>") == 1
        assert (
            len(rows) == 1
            or f"({len(rows)} numbers) <small>{rows['paper'].iloc[0]}, <code>{claim_id}<" in made.source
        )


def test_a_claims_line_names_its_condition_and_rounds_its_numbers(tmp_path):
    row = dict.fromkeys(COLUMNS) | {
        "claim_id": "c/avg-speedup-w16-k10", "paper": "averaging", "source": "Table.", "statement": "It is.",
        "published": "9.32", "unit": "x", "ours": 15.121089, "ci_low": 14.90001, "ci_high": 15.5,
        "evidence": "projected", "verdict": "not reproduced", "reason": "range of 3; allowed 7.9 to 10.7; blind",
        "command": "go",
    }  # fmt: skip
    other = {
        "claim_id": "c/avg-speedup-w16-k20",
        "published": "10.07",
        "ours": 0.5,
        "ci_low": 0.5,
        "ci_high": 0.5,
    }
    alone = {
        "claim_id": "d",
        "ours": 0.00527,
        "unit": "step of loss",
        "published": None,
        "evidence": "measured",
    }
    table = pd.DataFrame([row, row | other | {"reason": "single value; blind"}, row | alone])
    (tmp_path / "tables").mkdir()
    table.to_parquet(tmp_path / "tables/claims.parquet")
    source = make_report(tmp_path, tmp_path).read_text(encoding="utf-8")
    body, lines = lines_of_claim(source, "c")
    assert lines == [
        ["16 workers, K=10", "9.32 x", "15.1 x", "14.9 to 15.5", "projected", "\u00d7 not reproduced",
         "range of 3; allowed 7.9 to 10.7"],
        ["16 workers, K=20", "10.07 x", "0.500 x", "-", "projected", "\u00d7 not reproduced", "single value"],
    ]  # fmt: skip
    assert "All lines: blind." in body and "averaging: Table. <code>" in body
    assert lines_of_claim(source, "d")[1][0][1:3] == ["-", "0.00527step of loss"]
    assert "3 (2 projected)" in source


def test_numbers_obtained_elsewhere_are_shown_beside_ours(tmp_path):
    row = dict.fromkeys(COLUMNS) | {
        "claim_id": "c/avg-wer-swb-w1-random", "paper": "averaging", "source": "Table", "statement": "It is.",
        "published": "15.6", "unit": "%", "ours": 9.1, "ci_low": 7.2, "ci_high": 11.0, "evidence": "simulated",
        "dataset": "an4", "verdict": "not comparable here", "reason": "printed for Switchboard; 95 % interval",
        "command": "go",
    }  # fmt: skip
    other = {"claim_id": "c/avg-wer-swb-w1-rbm", "published": "14.7"}
    nothing = {"claim_id": "c/avg-wer-swb-w32", "ours": None, "ci_low": None, "ci_high": None, "evidence": None,
               "dataset": None, "reason": "printed for Switchboard"}  # fmt: skip
    (tmp_path / "tables").mkdir()
    pd.DataFrame([row, row | other, row | nothing]).to_parquet(tmp_path / "tables/claims.parquet")
    source = make_report(tmp_path, tmp_path).read_text(encoding="utf-8")
    body, lines = lines_of_claim(source, "c")
    # what tells the numbers of a claim apart stands in their condition
    assert lines == [
        ["1 worker, random", "15.6 %", "9.10 %", "7.20 to 11.0", "simulatedan4", "\u2013 not comparable here", ""],
        ["1 worker, rbm", "14.7 %", "9.10 %", "7.20 to 11.0", "simulatedan4", "\u2013 not comparable here", ""],
    ]  # fmt: skip
    assert "All lines: printed for Switchboard; 95 % interval." in body
    waiting = source[source.index("Claims without results here") :]
    assert "printed for Switchboard" in waiting and "<code>c</code>" in waiting


def test_speech_has_a_part_of_its_own(made):
    source = made.source
    part = source[source.index('id="speech-averaging"') : source.index('id="images-averaging"')]
    assert "word and frame errors on an4 (real recordings)" in part and "generated speech" not in part
    assert part.count("<figure ") == 12 and 'id="averaging-speech_workers"' in part
    assert "Word and frame errors, an4 (real recordings), simulated" in part and "tables/wer.csv" in part
    words = pd.read_parquet(made.folder / "reports/tables/wer.parquet")
    row = words[
        (words["evidence"] == "simulated") & words["published_swb"].notna() & (words["workers"] == 16)
    ].iloc[0]
    shown = [f"{100 * row[name]:.1f}" for name in ("wer", "wer_low", "wer_high")]
    assert "<td>{} ({} to {})</td>".format(*shown) in part
    assert f"{100 * row['published_swb']:.1f} / " in part
    assert '<a href="#speech-averaging">averaging: speech</a>' in source


def test_generated_speech_is_told_on_the_page(tmp_path):
    rows = [
        synthetic.speech_record(workers=m, dataset="generated_words", data_kind="generated") for m in (1, 16)
    ]
    runs = synthetic.runs(rows)
    pq.write_table(to_table(rows), tmp_path / "runs.parquet")
    make_tables(runs, None, None, tmp_path / "tables", utterances=synthetic.utterances(rows))
    source = make_report(tmp_path, tmp_path).read_text(encoding="utf-8")
    Page(source)
    assert "<b>generated_words is generated speech</b>" in source
    assert "Word and frame errors, generated_words (generated speech), simulated" in source


def bench(**given):
    row = {"benchmark": "end_to_end", "name": "small net", "ranks": 2, "ours_s": 0.25, "reference_s": 0.5, "ratio": 2.0,
           "ratio_low": 1.9, "ratio_high": 2.1, "goal": 1.5}  # fmt: skip
    return row | given


def test_benchmarks_are_shown_where_they_were_run(tmp_path):
    rows = [
        bench(),
        bench(name="slow", ratio=1.2),
        bench(name="upper", at_most=True),
        bench(name="free", goal=None),
    ]
    del rows[2]["ranks"]
    (tmp_path / "bench.json").write_text(json.dumps(rows))
    source = make_report(tmp_path, tmp_path).read_text(encoding="utf-8")
    Page(source)
    section = source[source.index('id="benchmarks"') : source.index('id="machine"')]
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", section)[1:]]
    assert cells[0] == [
        "end to end",
        "small net",
        "2",
        "250",
        "500",
        "2.00",
        "1.90",
        "2.10",
        "at least 1.5",
        "yes",
    ]
    assert [row[-1] for row in cells] == ["yes", "no", "no", "-"]
    assert cells[2][2] == "-" and cells[2][-2] == "at most 1.5"
    assert "measured" in section


def test_without_benchmarks_nothing_is_said_of_them(made):
    assert "benchmarks" not in made.source and "bench.json" not in made.source


@pytest.mark.parametrize("content", ["{", "3", '[{"ratio": "fast"}]', '["row"]', "[3]"])
def test_damaged_benchmarks_are_named(tmp_path, content):
    (tmp_path / "bench.json").write_text(content)
    source = make_report(tmp_path, tmp_path).read_text(encoding="utf-8")
    assert "bench.json cannot be read" in source and 'id="benchmarks"' not in source


@pytest.mark.parametrize(
    "value, shown",
    [(None, "-"), (1.9049, "1.90"), (15.121, "15.1"), (143.39, "143"), (0, "0"), (0.00380, "0.00380"), (9.996, "10.0"),
     (54321.0, "54,300"), (-3.7, "-3.70"), (float("inf"), "never"), (1e-9, "1e-09"), (2.5e6, "2,500,000")],
)  # fmt: skip
def test_numbers_beside_published_ones_have_three_digits(value, shown):
    assert html.brief(value) == shown


def test_failures_show_reason_log_and_its_tail_escaped(made):
    source = made.source
    assert "rank 3 died: MemoryError" in source and "over the limit of 600 s" in source
    assert "MemoryError: &lt;cannot&gt; allocate &amp; stop" in source and "<cannot>" not in source


def test_machine_config_and_counts_are_told(made):
    source = made.source
    for part in ("Example CPU", "MPICH 5.0.2", "2.13.0", "1 failed", "1 timeout", "2026-01-02"):
        assert part in source
    assert "experiments/speech.yaml" in source and "tier: default" in source
    assert "Not all inputs were there" not in source


def test_a_run_without_mpi_is_not_another_machine(tmp_path):
    rows = [
        synthetic.record(),
        synthetic.record(seed=1, mpi=None),
        synthetic.record(seed=2, cpu="Other CPU", mpi=None),
    ]
    pq.write_table(to_table(rows), tmp_path / "runs.parquet")
    source = make_report(tmp_path, tmp_path).read_text(encoding="utf-8")
    assert source.count('<dl class="facts">') == 2
    assert source.count("<dd>Example CPU</dd>") == source.count("<dd>Other CPU</dd>") == 1


def test_it_fits_phones_and_paper(made):
    source = made.source
    assert (
        'name="viewport"' in source and "@media print" in source and "@media screen and (max-width" in source
    )


def test_the_same_inputs_give_the_same_page(made, root):
    folder, source = made.folder, made.source
    path = make_report(
        folder / "results", folder / "reports", root / "config/config.yaml", folder / "again.html"
    )
    assert path.read_text(encoding="utf-8") == source


def test_without_inputs_the_page_is_made_and_says_what_is_missing(tmp_path):
    source = make_report(tmp_path / "results", tmp_path / "reports", tmp_path / "none.yaml").read_text()
    Page(source)
    for name in ("runs.parquet", "claims.parquet", "speedup.parquet", "figures.json", "none.yaml"):
        assert name in source
    assert "No claim has been judged yet" in source


def test_damaged_inputs_are_named_and_stop_nothing(made, tmp_path):
    tables = tmp_path / "reports/tables"
    tables.mkdir(parents=True)
    (tables / "speedup.parquet").write_bytes(b"PAR1 not really")
    (tmp_path / "runs.parquet").write_bytes(b"PAR1 not really")
    (tmp_path / "reports/figures").mkdir()
    (tmp_path / "reports/figures/figures.json").write_text(
        '[{"paper": "averaging", "name": "x", "title": "", "caption": "", "alt": "", "command": "",'
        ' "files": {"svg": "none.svg", "csv": "none.csv"}}]'
    )
    (tmp_path / "config.yaml").write_text("a: [")
    source = make_report(tmp_path, tmp_path / "reports", tmp_path / "config.yaml").read_text()
    Page(source)
    assert "speedup.parquet is damaged" in source and "runs.parquet is damaged" in source
    assert "none.svg" in source and "is not YAML" in source


def test_only_failed_runs_make_a_page(tmp_path):
    records = synthetic.broken(tmp_path / "results/logs")
    pq.write_table(to_table(records), tmp_path / "results/runs.parquet")
    runs = synthetic.runs(records)
    make_tables(runs, None, None, tmp_path / "reports/tables")
    figures.make_figures(
        runs, None, None, tmp_path, tmp_path / "reports/figures", published=synthetic.published()
    )
    source = make_report(tmp_path / "results", tmp_path / "reports").read_text()
    Page(source)
    assert "MemoryError" in source


@pytest.mark.parametrize(
    "value, shown",
    [
        (None, "-"),
        (float("nan"), "-"),
        (float("inf"), "never"),
        (0.123456, "0.1235"),
        (54000, "54,000"),
        (1234567.8, "1,234,568"),
        (2.0, "2"),
        (1e-7, "1e-07"),
    ],
)
def test_numbers_are_short(value, shown):
    assert html.number(value) == shown


def test_what_all_rows_share_is_said_once():
    frame = pd.DataFrame(
        {
            "paper": "p",
            "dataset": "digits",
            "workers": [1, 2],
            "wall_s": [1.0, 2.0],
            "nothing": None,
            "command": "go",
        }
    )
    table = html.table_of(frame)
    assert table.headings == ["workers", "wall (s)"]
    assert (table.common, table.command) == ("dataset: digits", "go")


def test_long_tables_say_what_they_leave_out():
    assert html.table_of(pd.DataFrame({"workers": range(500)}), most_rows=100).left_out == 400


# -- the last lines of a run -------------------------------------------------------------------------------------------


def summary(results, reports, **how):
    out = io.StringIO()
    code = summarise(results, reports, out, **how)
    return out.getvalue(), code


def test_the_summary_names_what_failed_and_fails(made):
    folder = made.folder
    text, code = summary(folder / "results", folder / "reports")
    assert code == 1
    assert "1 failed" in text and "1 timeout" in text and f"report: {folder / 'reports/report.html'}" in text
    line = next(line for line in text.splitlines() if line.strip().startswith("failed:"))
    assert "rank 3 died: MemoryError" in line and "logs/0.log" in line
    assert "diverged:" not in text


@pytest.mark.parametrize(
    "status, code",
    [("ok", 0), ("diverged", 0), ("target_missed", 0), ("skipped", 0), ("failed", 1), ("timeout", 1)],
)
def test_the_exit_code(tmp_path, status, code):
    pq.write_table(to_table([synthetic.record(status=status)]), tmp_path / "runs.parquet")
    assert summary(tmp_path, tmp_path)[1] == code


def test_points_without_a_record_fail_a_run_but_not_a_partial_report(tmp_path):
    ok, lost = synthetic.record(), synthetic.record(seed=1)
    path = tmp_path / "runs" / ok["run_id"] / "record.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(ok))
    collect([ok["run_id"], lost["run_id"]], tmp_path)
    text, code = summary(tmp_path, tmp_path)
    assert code == 1 and f"skipped: {lost['run_id']}: no record" in text
    text, code = summary(tmp_path, tmp_path, partial=True)
    assert code == 0 and "1 skipped" in text and lost["run_id"] not in text


@pytest.mark.parametrize("status", ["failed", "timeout"])
def test_a_partial_report_fails_for_what_broke(tmp_path, status):
    pq.write_table(to_table([synthetic.record(status=status)]), tmp_path / "runs.parquet")
    assert summary(tmp_path, tmp_path, partial=True)[1] == 1


def test_no_runs_is_a_failure(tmp_path):
    text, code = summary(tmp_path, tmp_path)
    assert code == 1 and "no runs" in text and "no report" in text
