"""``python -m lab.versions [COMPONENT...]``: run the essential tests, and write the results.

The results of all other components stay unchanged.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor

from lab.running.progress import say
from lab.servers import UnavailableError
from lab.versions import free_threaded
from lab.versions.components import COMPONENTS
from lab.versions.result import save
from lab.versions.run import run_component
from tests.docs import tables

_NAMES = (*COMPONENTS, free_threaded.NAME)


def main() -> int:
    """Run the named components, or all; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.versions", description=__doc__)
    parser.add_argument("components", nargs="*", metavar="COMPONENT", help=" ".join(_NAMES))
    parser.add_argument("--jobs", type=int, default=2, help="so many at the same time (2)")
    arguments = parser.parse_args()
    wanted: list[str] = arguments.components or [*_NAMES]
    if unknown := set(wanted) - {*_NAMES}:
        parser.error(f"no such component: {' '.join(sorted(unknown))}")
    with ThreadPoolExecutor(arguments.jobs) as pool:
        all_well = [*pool.map(_run, wanted)]
    tables.main()
    return 0 if all(all_well) else 1


def _run(name: str) -> bool:
    """Run a component and write its result; return whether all tests passed."""
    try:
        is_component = name in COMPONENTS
        result = run_component(COMPONENTS[name]) if is_component else free_threaded.run_all()
    except UnavailableError as reason:
        say(f"{name}: NOT RUN: {reason}")
        return False
    save(result)
    skipped = sum(result.skipped.values())
    reported = f"{result.passed} passed, {skipped} skipped, {result.failed} failed"
    say(f"{name}: {result.product} {result.version}: {reported}")
    return result.failed == 0


if __name__ == "__main__":
    sys.exit(main())
