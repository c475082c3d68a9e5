# From config to report: prepare -> calibrate -> run -> collect -> timings -> claims, tables, figures -> report.
#
#     snakemake --cores all                                          the default tier
#     snakemake --cores 2 smoke                                      everything at its smallest, about two minutes
#     snakemake --cores all averaging --configfile config/extended.yaml   one paper, all of its claims
#     snakemake -n                                                   which points there are, and what would run
#
# Trained points are kept in results/runs/ and are no declared output: a job that is killed, or started again because
# one of its points failed, goes on from what they left. What must run again is worked out in
# implementations/workflow.py; docs/architecture.md has the reasons.
import os
import sys

from snakemake.utils import min_version

min_version("9.27.1")
sys.path.insert(0, str(workflow.basedir))

from implementations.workflow import (
    CALIBRATION_NOTE,
    CALIBRATION_OUTCOME,
    LOCAL_CLUSTER,
    Pipeline,
    code,
    files,
    prepared,
    repo,
)

pipeline = Pipeline(workflow)

TABLES = (
    "speedup time_split accuracy wer volume targets times crossings width memory plans search prediction plan"
    " degrees equivalence exactness spark_exactness spark_speedup spark_executions spark_memory spark_async"
    " tuning validation fitted loss runs failures"
    " shootout winners changes counters emulated scale projected advice"
).split()


# Experiments whose measured points the calibration is held against, among others.
VALIDATING = "(validation|ist_ranks|layerwise_ranks)_"


# Names the operating system that the suite is made on. Used only with `--software-deployment-method`: the packages
# are those of the environment that Snakemake itself runs in (requirements.lock).
container: "docker://python:3.11-bookworm"


localrules:
    all,
    smoke,
    data,
    spark,
    ist,
    averaging,
    layerwise,
    suite,
    report,
    prepare,
    collect,
    timings,
    claims,
    tables,
    figures,
    page,
    projections,


wildcard_constraints:
    dataset=r"[a-z0-9_]+",
    batch=r"[A-Za-z0-9_.-]+",


onsuccess:
    print(pipeline.ending(well=True), flush=True)


onerror:
    print(pipeline.ending(well=False), flush=True)


# The targets: each makes the report, then tells how points and steps ended, and fails if one of them failed.


rule all:
    input:
        page="reports/report.html",
        steps=lambda w: [CALIBRATION_OUTCOME, *pipeline.preparations()],
    log:
        "results/logs/status_all.log",
    params:
        partial="",
    shell:
        "{{ python -m implementations status {params.partial} || failed=1;"
        " python -m implementations.workflow {input.steps} || failed=1; exit ${{failed:-0}}; }} 2>&1 | tee {log}"


use rule all as smoke with:
    log:
        "results/logs/status_smoke.log",


use rule all as spark with:
    log:
        "results/logs/status_spark.log",


use rule all as ist with:
    log:
        "results/logs/status_ist.log",


use rule all as averaging with:
    log:
        "results/logs/status_averaging.log",


use rule all as layerwise with:
    log:
        "results/logs/status_layerwise.log",


use rule all as suite with:
    log:
        "results/logs/status_suite.log",


use rule all as report with:
    log:
        "results/logs/status_report.log",
    params:
        partial="--partial",


# Data alone. What could not be had is known from then on, and what stands in for it.
rule data:
    input:
        lambda w: pipeline.preparations(),


# The steps. Preparation and calibration end well also when they fail, and say so in their outcome file: what does not
# need them goes on, what does is recorded as failed. Their outcome files are updated, as they count the attempts.


rule prepare:
    input:
        card=lambda w: repo(f"datasets/{w.dataset}/card.yaml"),
        recipe=lambda w: repo(f"datasets/{w.dataset}/prepare.py"),
    output:
        update(prepared("{dataset}")),
    log:
        "results/logs/prepare_{dataset}.log",
    params:
        attempt=lambda w: pipeline.step_attempt(prepared(w.dataset), f"results/data/{w.dataset}/summary.json"),
    shell:
        "python -m implementations prepare {wildcards.dataset} --outcome {output} 2>&1 | tee {log}"


rule calibrate:
    output:
        outcome=update(CALIBRATION_OUTCOME),
        covers=CALIBRATION_NOTE,
    log:
        "results/logs/calibrate.log",
    priority: 10  # first, so that what takes the time of this machine is known whatever else fails
    threads: lambda w: workflow.cores
    params:
        attempt=lambda w: pipeline.step_attempt(CALIBRATION_OUTCOME, LOCAL_CLUSTER),
        covers=lambda w: pipeline.calibration,
        quick=lambda w: pipeline.quick,
        points=lambda w, output: pipeline.points_arguments,
        cluster=LOCAL_CLUSTER,
    shell:
        "python -m implementations calibrate {params.points} {params.quick} --out {params.cluster}"
        " --outcome {output.outcome} 2>&1 | tee {log} && printf '%s' {params.covers:q} > {output.covers}"


rule run:
    input:
        lambda w: pipeline.prepared(w.batch),
    output:
        "results/batches/{batch}.json",
    log:
        "results/logs/batch_{batch}.log",
    wildcard_constraints:
        batch=r"(?!speech_).+_simulated_.+",
    threads: lambda w: pipeline.threads(w.batch)
    params:
        code=lambda w: pipeline.code(w.batch),
        attempt=lambda w: pipeline.attempt(w.batch),
        configfile=lambda w, output: pipeline.batch(w.batch)[0],
    shell:
        "python -m implementations run --configfile {params.configfile:q} --batch {wildcards.batch}"
        " --manifest {output} 2>&1 | tee {log}"


# Minutes each, as words are decoded: started first, so that none of them is left running alone at the end.
use rule run as run_speech with:
    wildcard_constraints:
        batch=r"speech_.+_simulated_.+",
    priority: 3


# Right after the calibration that they are held against: a shared machine drifts. Those first that are there for it.
use rule run as run_validation with:
    wildcard_constraints:
        batch=f"{VALIDATING}.+_measured_.+",
    priority: 7


use rule run as run_measured with:
    wildcard_constraints:
        batch=f"(?!{VALIDATING}).+_measured_.+",
    priority: 5


# Also right after it, as it times blocks of layers on this machine.
rule plans:
    input:
        calibration=CALIBRATION_OUTCOME,
        clusters=lambda w: pipeline.clusters(),
        cards=lambda w: pipeline.cards(),
        code=code("plans"),
    output:
        plans="results/plans.parquet",
        searches="results/search.parquet",
    log:
        "results/logs/plans.log",
    priority: 8
    threads: lambda w: workflow.cores
    params:
        points=lambda w: pipeline.points_arguments,
        covers=lambda w: pipeline.planned,
    shell:
        "python -m implementations plans {params.points} --out {output.plans} 2>&1 | tee {log}"


# The cost model of training on Spark, at sizes and on machines that nothing is trained on.
rule projections:
    input:
        calibration=CALIBRATION_OUTCOME,
        clusters=lambda w: pipeline.clusters(),
        cards=lambda w: pipeline.spark_cards(),
        code=code("sparkprojections"),
    output:
        "results/spark.parquet",
    log:
        "results/logs/spark.log",
    params:
        points=lambda w: pipeline.points_arguments,
        covers=lambda w: pipeline.projected,
    shell:
        "python -m implementations spark {params.points} --out {output} 2>&1 | tee {log}"


# Which method, for the report's example networks on the tier's clusters.
rule advice:
    input:
        runs="results/runs.parquet",
        timings="results/timings.parquet",
        plans="results/plans.parquet",
        calibration=CALIBRATION_OUTCOME,
        clusters=lambda w: pipeline.clusters(),
        cards=files("datasets/*/card.yaml"),
        code=code("advise_verb"),
    output:
        "results/advice.parquet",
    log:
        "results/logs/advice.log",
    params:
        points=lambda w: pipeline.points_arguments,
    shell:
        "python -m implementations advise --examples {params.points} --out {output} 2>&1 | tee {log}"


rule exactness:
    input:
        code=code("exactness"),
    output:
        "results/exactness.parquet",
    log:
        "results/logs/exactness.log",
    params:
        points=lambda w: pipeline.points_arguments,
    shell:
        "python -m implementations exactness {params.points} --out {output} 2>&1 | tee {log}"


rule collect:
    input:
        records=lambda w: pipeline.manifests(),
        code=code("config", "reporting.collect"),
    output:
        runs="results/runs.parquet",
        utterances="results/utterances.parquet",
    log:
        "results/logs/collect.log",
    params:
        points=lambda w: pipeline.points_arguments,
    shell:
        "python -m implementations collect {params.points} --out {output.runs} 2>&1 | tee {log}"


rule timings:
    input:
        runs="results/runs.parquet",
        calibration=CALIBRATION_OUTCOME,
        clusters=lambda w: pipeline.clusters(),
        code=code("timings"),
    output:
        "results/timings.parquet",
    log:
        "results/logs/timings.log",
    params:
        points=lambda w: pipeline.points_arguments,
    shell:
        "python -m implementations timings {params.points} --runs {input.runs} --out {output} 2>&1 | tee {log}"


rule claims:
    input:
        runs="results/runs.parquet",
        utterances="results/utterances.parquet",
        timings="results/timings.parquet",
        plans="results/plans.parquet",
        searches="results/search.parquet",
        projections="results/spark.parquet",
        exactness="results/exactness.parquet",
        claims=files(
            "config/claims/*",
            "config/published/*",
            "config/schemas/claims.schema.yaml",
        ),
        code=code("reporting.verdicts"),
    output:
        csv=report("reports/tables/claims.csv", category="Claims"),
        parquet="reports/tables/claims.parquet",
    log:
        "results/logs/claims.log",
    params:
        points=lambda w: pipeline.points_arguments,
    shell:
        "python -m implementations claims {params.points} --runs {input.runs} --timings {input.timings}"
        " --plans {input.plans}"
        " --out {output.csv} 2>&1 | tee {log}"


rule tables:
    input:
        runs="results/runs.parquet",
        utterances="results/utterances.parquet",
        timings="results/timings.parquet",
        plans="results/plans.parquet",
        searches="results/search.parquet",
        projections="results/spark.parquet",
        exactness="results/exactness.parquet",
        advice="results/advice.parquet",
        published=files("config/published/*"),
        clusters=files("config/clusters/*"),
        code=code("reporting.tables", "timings"),
    output:
        csv=report(expand("reports/tables/{name}.csv", name=TABLES), category="Tables"),
        parquet=expand("reports/tables/{name}.parquet", name=TABLES),
    log:
        "results/logs/tables.log",
    params:
        points=lambda w: pipeline.points_arguments,
        folder=lambda w, output: os.path.dirname(output[0]),
    shell:
        "python -m implementations tables {params.points} --runs {input.runs} --timings {input.timings}"
        " --plans {input.plans}"
        " --out {params.folder} 2>&1 | tee {log}"


rule figures:
    input:
        runs="results/runs.parquet",
        utterances="results/utterances.parquet",
        timings="results/timings.parquet",
        plans="results/plans.parquet",
        searches="results/search.parquet",
        projections="results/spark.parquet",
        published=files("config/published/*"),
        clusters=files("config/clusters/*"),
        code=code("reporting.figures", "timings"),
    output:
        report(directory("reports/figures"), patterns=["{name}.svg"], category="Figures"),
    log:
        "results/logs/figures.log",
    params:
        points=lambda w: pipeline.points_arguments,
    shell:
        "python -m implementations figures {params.points} --runs {input.runs} --timings {input.timings}"
        " --plans {input.plans}"
        " --out {output} 2>&1 | tee {log}"


rule page:
    input:
        runs="results/runs.parquet",
        timings="results/timings.parquet",
        claims="reports/tables/claims.parquet",
        tables=expand("reports/tables/{name}.parquet", name=TABLES),
        figures="reports/figures",
        code=code("reporting.report"),
        templates=files("implementations/reporting/templates/*"),
    output:
        report("reports/report.html", category="Report"),
    log:
        "results/logs/report.log",
    params:
        points=lambda w: pipeline.points_arguments,
    shell:
        "python -m implementations report {params.points} --out {output} 2>&1 | tee {log}"
