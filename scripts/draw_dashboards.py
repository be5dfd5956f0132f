"""Draw the dashboards from a run of a local stack: docs/images/dashboard-*.png.

sluice demo --no-early-stop                          in one terminal
python scripts/draw_dashboards.py --stack demo       in another, once the services are up

A real Prometheus scrapes the stack until its run has ended; then each panel is drawn from its own queries. The pictures
are made by matplotlib and are no screenshots of Grafana.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from monitoring.dashboard_file import Variables, dashboards
from monitoring.drawing import Picture, Stretch
from monitoring.prometheus import ROOT, Prometheus

from sluice.local.ports import LOOPBACK
from sluice.local.state import StackState, find_stack

CAPTION = (
    "{run}; seconds since it began. Drawn by matplotlib from the dashboard's own queries; not a screenshot of Grafana"
)
RUNNING = 'max_over_time(sluice_run_state{state="running"}[10s]) == 1'
"""On a busy machine a scrape may come late while the run goes on."""
RUNNING_SECONDS = 10.0


def targets(stack: StackState) -> dict[str, list[str]]:
    """Addresses with metrics in a local stack, by service."""
    found: dict[str, list[str]] = {"coordinator": [f"{LOOPBACK}:{stack.ports['api']}"]}
    for name, port in stack.ports.items():
        service = name.split("-")[0]
        if service == "engine" or (name.endswith("-metrics") and service in ("rollout", "reward", "trainer")):
            found.setdefault(service, []).append(f"{LOOPBACK}:{port}")
    return found


def watch(prometheus: Prometheus, seconds: float) -> Stretch:
    """Wait until a run is there, and until it has ended; the time in between.

    Raises:
        TimeoutError: that took longer than `seconds`.
    """
    deadline = time.monotonic() + seconds
    began = None
    while time.monotonic() < deadline:
        running = prometheus.query(RUNNING)
        if running and began is None:
            began = time.time()
        if began is not None and not running:
            return Stretch(began, time.time() - RUNNING_SECONDS, step=2.0)
        time.sleep(0.5)
    raise TimeoutError(f"no run began and ended within --seconds {seconds:g}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stack", default="demo", help="name of the running stack")
    parser.add_argument("--label", default="make demo", help="what the run is called under the pictures")
    parser.add_argument("--seconds", type=float, default=1800.0, help="longest time to wait for the run")
    parser.add_argument("--window", default="30s", help="over how long panels average what happens once a step")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    arguments = parser.parse_args()
    stack = find_stack(arguments.stack)
    with (
        tempfile.TemporaryDirectory(prefix="sluice-prometheus-") as folder,
        Prometheus(Path(folder), targets(stack), scrape_seconds=1.0) as prometheus,
    ):
        stretch = watch(prometheus, arguments.seconds)
        picture = Picture(prometheus, Variables(run=".+", rate_interval="15s", window=arguments.window), stretch)
        for dashboard in dashboards():
            file = arguments.out / f"dashboard-{dashboard.uid.removeprefix('sluice-')}.png"
            picture.draw(dashboard, CAPTION.format(run=arguments.label), file)
            print(f"wrote {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
