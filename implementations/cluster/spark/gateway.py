"""Java's process, in which Spark's driver runs, and the context by which Python speaks to it."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from implementations.errors import UserError
from implementations.lifeline import Guard

if TYPE_CHECKING:
    from pyspark import SparkContext

POLL_S = 0.1
_CHATTER = (
    *("WARNING: Using incubator modules", "NOTE: ", "Picked up ", "Setting default log level"),
    *("To adjust logging level", "Setting Spark log level", "INFO ", "Using Spark's default log4j profile"),
)


def start(
    master: str,
    properties: Mapping[str, Any],
    environment: Mapping[str, str],
    guard: Guard,
    folder: Path,
    until: float,
) -> SparkContext:
    """Java's process and Spark's context in it; UserError with what Java said where it does not come up."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    values = {"spark.master": master} | {name: str(value) for name, value in properties.items()}
    log, late = folder / "driver.log", threading.Event()
    process = _java_process(values, environment, folder, log)
    guard.adopt(process.pid)

    def give_up() -> None:
        late.set()
        process.kill()

    watch = threading.Timer(max(until - time.monotonic(), 1.0), give_up)
    handler = signal.getsignal(signal.SIGINT)
    watch.start()
    try:
        port, secret = _gateway_of(process, folder)
        found = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
        with _environ(dict(environment) | found):
            gateway = launch_gateway()
            gateway.proc = process
            conf = SparkConf(loadDefaults=False).setAll(list(values.items()))
            return SparkContext(conf=conf, gateway=gateway)
    except Exception as error:
        _reap(process)
        said = _last_words(log) or (str(error).strip().splitlines() or [type(error).__name__])[0]
        reason = f"not within the limit (spark: start_limit_s); {said}" if late.is_set() else said
        raise UserError(f"Spark does not start on {master}: {reason}") from error
    finally:
        watch.cancel()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)  # which the context takes for itself


def _java_process(
    properties: Mapping[str, str], environment: Mapping[str, str], folder: Path, log: Path
) -> subprocess.Popen[bytes]:
    """The Java that pyspark talks to; it ends when its standard input is closed."""
    words = [word for name, value in properties.items() for word in ("--conf", f"{name}={value}")]
    variables = {"SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(folder / "gateway")}
    with log.open("ab") as output:
        return subprocess.Popen(
            [f"{environment['SPARK_HOME']}/bin/spark-submit", *words, "pyspark-shell"],
            env=dict(environment) | variables,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,  # an interrupt from the keyboard is not meant for it
        )


def _gateway_of(process: subprocess.Popen[bytes], folder: Path) -> tuple[int, str]:
    """Port and secret that Java answers by, once it has left them."""
    path = folder / "gateway"
    while not path.exists():
        if process.poll() is not None:
            raise RuntimeError(f"Java ended with exit status {process.returncode}")
        time.sleep(POLL_S)
    port, length = struct.unpack(">ii", (content := path.read_bytes())[:8])
    return port, content[8 : 8 + length].decode()


def close(guard: Guard, folder: Path) -> None:
    """End Java and what it has started, remove the folder, and let pyspark forget them; what Java said is printed."""
    said = _log_text(folder / "driver.log")
    guard.close()
    if said:
        print(said, file=sys.stderr, flush=True)
    if "pyspark" not in sys.modules:
        return
    from pyspark import SparkContext

    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    SparkContext._active_spark_context = None
    if gateway is not None:
        with contextlib.suppress(Exception):
            gateway.shutdown()
        _reap(gateway.proc)


def _reap(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    process.stdin.close()


@contextlib.contextmanager
def _environ(values: Mapping[str, str]) -> Iterator[None]:
    """This process's environment replaced for a while: pyspark reads it, and hands it on."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _log_text(log: Path) -> str:
    """What Java wrote, without what it says at every start."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(
        line for line in lines if line.strip() and not line.startswith(_CHATTER) and " WARN " not in line
    )


def _last_words(log: Path) -> str:
    """The line that tells most of why Java ended."""
    lines = _log_text(log).splitlines()
    telling = [line for line in lines if "Exception" in line or "rror" in line]
    return (telling or lines or [""])[0].strip()
