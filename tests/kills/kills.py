"""Kills runs at random moments, and sees that the next start ends well, with the same numbers and nothing left.

    python tests/kills/kills.py --count 100            smoke, in a copy of the repository; some hours
    python tests/kills/kills.py --count 20 --quick     a tier of a few points; half an hour

Each time a run starts from nothing; at a random moment Snakemake, or any process below it, gets SIGKILL, SIGTERM or
SIGINT. Then it is started again, at once where Snakemake was killed, and must end well. Held against an undisturbed
run: every number of every record and curve but times. Looked for: processes, temporary files, network namespaces,
shared memory, partial files. Exit code 1 if anything is amiss; the copy is then kept.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent))

from world import World, differences, kill, short

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
LIMIT_S = 900.0  # for a start


def main() -> int:
    """Kill as often as asked for; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100, help="kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a few points in place of smoke")
    parser.add_argument("--keep", action="store_true", help="the copy of the repository, also if all is well")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kills-")).resolve()
    world = World(folder, args.quick)
    try:
        amiss = kill_often(world, args.count, args.seed)
    finally:
        world.end()
    if amiss or args.keep:
        print(f"the copy, with all that was said in {world.said.name}: {folder}")
    else:
        shutil.rmtree(folder)
    print(f"{args.count} kills, {amiss} amiss")
    return 1 if amiss else 0


def kill_often(world: World, count: int, seed: int) -> int:
    """The number of kills after which something was amiss."""
    chance = random.Random(seed)
    # a shell's background jobs, and all that they start, ignore it unless told otherwise
    signal.signal(signal.SIGINT, signal.default_int_handler)
    world.fresh()
    problems = ended(world.start("--until", "calibrate", "prepare")) if world.quick else []
    began = time.monotonic()
    problems += ended(world.start())
    wanted, lasts_s = world.outcome() if not problems else None, time.monotonic() - began
    problems += world.left()
    tell("undisturbed", lasts_s, problems)
    if problems or wanted is None:
        return count
    amiss = 0
    for number in range(1, count + 1):
        world.fresh()
        what, problems = disturbed(world, chance, lasts_s)
        began = time.monotonic()
        again = ended(world.start())
        again_s = time.monotonic() - began
        problems += again
        problems += [] if again else differences(world.outcome(), wanted)
        problems += world.left()
        tell(f"kill {number}: {what}", again_s, problems)
        amiss += bool(problems)
        world.end()
    return amiss


def disturbed(world: World, chance: random.Random, lasts_s: float) -> tuple[str, list[str]]:
    """Start, kill at some moment; what was killed, and what is amiss with the end that came of it."""
    moment_s, number = chance.uniform(0.0, lasts_s), chance.choice(SIGNALS)
    first, pick = chance.random() < 0.5, chance.random()
    started = world.start()
    time.sleep(moment_s)
    family = [process for process in world.processes() if process.pid != started.pid]
    main_one = first or not family
    victim = psutil.Process(started.pid) if main_one else family[int(pick * len(family))]
    what = f"{number.name} to {short(victim)} after {moment_s:.1f} s"
    kill(victim, number)
    try:  # the rest of a run of which one process was killed goes on, and tells in the end what failed
        started.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        world.end()
        started.wait()
        return what, [f"did not end within {LIMIT_S:g} s"]
    return what, []


def ended(started: subprocess.Popen[bytes]) -> list[str]:
    """What is amiss with a start that should end well."""
    try:
        code = started.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        started.kill()
        started.wait()
        return [f"did not end within {LIMIT_S:g} s"]
    return [f"ended with exit status {code}"] if code else []


def tell(what: str, seconds: float, problems: list[str]) -> None:
    """One line, and one for each problem."""
    print(f"{what}; then {seconds:.0f} s: {'amiss' if problems else 'well'}", flush=True)
    for line in problems[:20]:
        print(f"    {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
