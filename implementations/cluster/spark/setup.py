"""What Spark is started with: its folder, the environment of its processes, and its own settings."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from implementations.cluster.launcher import rank_environment

LOOPBACK = "127.0.0.1"
_EXECUTOR_ENVIRONMENT = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    *("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "PYTHONPATH"),
)
_LOGGING = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n%ex
logger.master.name = org.apache.spark.deploy.master.Master
logger.master.level = info
"""


def spark_home(folder: Path) -> Path:
    """Spark's folder, in which it may write: clusters on this machine make working folders there."""
    import pyspark

    installed, home = Path(pyspark.__file__).parent, folder / "spark"
    home.mkdir()
    for name in ("bin", "sbin", "jars", "python"):
        (home / name).symlink_to(installed / name)
    return home


def addresses(address: str) -> dict[str, str]:
    """Variables by which a process of Spark is reached at an address."""
    return {"SPARK_LOCAL_IP": address, "SPARK_LOCAL_HOSTNAME": address}


def environment(
    java_home: Path, home: Path, folder: Path, own: bool, address: str = LOOPBACK
) -> dict[str, str]:
    """The environment of Java's processes; ``own``: a cluster on this machine, to which no other set-up applies.

    ``address``: the driver's, in such a cluster.
    """
    environment = rank_environment(1)
    for name in list(environment):
        if name.startswith("PYSPARK_") or (own and name.startswith("SPARK_")):
            del environment[name]
    configuration = folder / "conf"
    configuration.mkdir()
    (configuration / "log4j2.properties").write_text(_LOGGING)
    environment |= {"JAVA_HOME": str(java_home), "SPARK_HOME": str(home)}
    environment |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if own:
        environment |= {
            "SPARK_CONF_DIR": str(configuration),
            **addresses(address),
            "SPARK_LOCAL_DIRS": str(folder),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{_java_options(folder)} -XX:+UseSerialGC -Dspark.master.rest.enabled=false",
        }
    return environment


def _java_options(folder: Path) -> str:
    """Nothing is left in the system's temporary folder, even by a kill."""
    return f"-XX:-UsePerfData -Djava.io.tmpdir={folder}"


def properties(
    workers: int,
    cluster: str,
    values: Mapping[str, Any],
    folder: Path,
    environment: Mapping[str, str],
    address: str = LOOPBACK,
) -> dict[str, Any]:
    """Spark's own settings. ``address``: the driver's, in a cluster on this machine."""
    found = {
        "spark.app.name": "paratrain",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": f"{values['driver_memory_mb']}m",
        "spark.driver.maxResultSize": "0",
        "spark.driver.extraJavaOptions": _java_options(folder),
        "spark.executor.memory": f"{values['executor_memory_mb']}m",
        "spark.executor.cores": "1",
        "spark.executor.instances": workers,
        "spark.cores.max": workers,
        "spark.dynamicAllocation.enabled": "false",
        "spark.task.cpus": "1",
        "spark.python.worker.reuse": "true",
        # What is sent is numbers, which hardly get smaller, and their bytes are counted.
        "spark.broadcast.compress": "false",
        "spark.shuffle.compress": "false",
        # Too few slots are found before a stage of workers is submitted; Spark would look for ten minutes.
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "20",
    }
    found |= {
        f"spark.executorEnv.{name}": environment[name]
        for name in _EXECUTOR_ENVIRONMENT
        if name in environment
    }
    if cluster != "given":
        found |= {
            "spark.driver.host": address,
            "spark.driver.bindAddress": address,
            "spark.executor.extraJavaOptions": _java_options(folder),
            # A process that dies closes its connections; silence only means that this machine is busy.
            "spark.network.timeout": "600s",
        }
    return found
