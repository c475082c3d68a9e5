"""The processes that measure: an order goes in, an answer comes out, and whatever they need is started fresh.

python -m implementations.cluster.measuring ORDER ANSWER       one of them, under mpiexec where there are several
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from implementations import lifeline
from implementations.cluster import launcher, ownership
from implementations.cluster.peers import Ranks
from implementations.errors import UserError

LIMIT_S = 600.0


def measure(
    ranks: int,
    order: dict[str, Any],
    settings: Mapping[str, Any] | None = None,
    *,
    threads: int = 1,
    hosts: Any = None,
) -> dict[str, Any]:
    """What ``ranks`` fresh processes of ``threads`` threads each measured.

    ``order``: what to measure, each part left out where it is not named: ``shapes`` (steps), ``company``, ``device``,
    ``memory``, ``link`` (with ``largest_bytes``), ``collectives`` (``sizes``, ``algorithms``), ``refills`` (shapes),
    ``tasks``; and ``quick``.
    ``settings``: config's ``launcher``. ``hosts``: a ``hosts.network.Network`` to spread ranks over, one on each host.
    UserError with their last words when they fail.
    """
    with ownership.folder("calibrate") as folder:
        asked, answer = folder / "order.json", folder / "answer.json"
        asked.write_text(json.dumps(order | {"threads": threads}))
        command = launcher.mpi_command(ranks, settings, spread=hosts is not None) if ranks > 1 else []
        command += [sys.executable, "-m", __spec__.name, str(asked), str(answer)]
        environment = launcher.rank_environment(threads)
        if hosts is not None:
            from implementations.cluster.hosts import plan
            from implementations.cluster.hosts import ranks as on_hosts

            environment |= on_hosts.environment(hosts)
            command = plan.inside(hosts.plan.hosts[0].namespace, command)
        output, errors, code = launcher._run(command, environment, LIMIT_S)
        if code != 0 or not answer.is_file():
            last = "\n".join((errors or output).strip().splitlines()[-8:]) or f"exit code {code}"
            raise UserError(
                f"calibrate: {ranks} measuring process(es) failed:\n{last}\n"
                "run `python -m implementations doctor` to see whether MPI works here"
            )
        return json.loads(answer.read_text())


def carry_out(order: dict[str, Any], group: Ranks, folder: Path) -> dict[str, Any]:
    """What an order asks for; every rank of ``group`` calls it. ``folder``: for files that they find each other by."""
    from implementations.cluster import linktimes, steptimes

    quick = order["quick"]
    found: dict[str, Any] = {"mpi": group.library}
    found["steps"] = steptimes.rows(order.get("shapes", []), order["threads"], quick, group)
    if order.get("company"):
        found["company"] = steptimes.company(quick, group)
    if order.get("device"):
        found |= steptimes.device(quick)
    if order.get("memory"):
        found["memory_bytes_per_s"] = steptimes.memory_bytes_per_s(group)
        found["packing_bytes_per_s"] = steptimes.packing_bytes_per_s(group)
    if "link" in order:
        found["link"] = linktimes.link(group, order["link"]["largest_bytes"])
    if "collectives" in order:
        found["collectives"] = linktimes.collectives(quick=quick, group=group, **order["collectives"])
    if "refills" in order:
        found["refills"] = linktimes.refills(order["refills"], quick, group)
    if order.get("tasks"):
        found["tasks"] = linktimes.tasks(group, folder)
    return found


def main(asked: Path, answer: Path) -> None:
    """Carry out an order; the first rank writes the answer."""
    lifeline.hold_on()
    group = Ranks()
    found = carry_out(json.loads(asked.read_text()), group, asked.parent)
    if group.rank == 0:
        answer.write_text(json.dumps(found))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="One measuring process; started by `calibrate`.")
    parser.add_argument("order", type=Path)
    parser.add_argument("answer", type=Path)
    given = parser.parse_args()
    main(given.order, given.answer)
