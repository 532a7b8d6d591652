"""A real Prometheus finds the nodes of a cluster, reads their metrics, and answers the queries of the dashboard."""

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from helpers import Gate

from fptps.cluster._commands import reserved_port

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("promtool") is None, reason="no Prometheus: apt-get install prometheus"),
]

ROOT = Path(__file__).parents[2]

TRAIN = """
import sys
import threading
import numpy as np
import fptps
from helpers import pass_gate

with fptps.KVWorker() as kv:
    kv.set_tensor_count(1)
    array, more = np.zeros(100_000, np.float32), np.ones(1, np.float32)
    kv.init(0, array)
    kv.init(1, more)
    end = threading.Event()
    threading.Thread(target=lambda: (pass_gate(sys.argv[1], kv.rank), end.set())).start()
    while True:
        kv.push_pull(0, array, out=array, priority=-3).result()
        more[0] = not end.is_set()
        if kv.push_pull(1, more, out=more).result()[0] == 0:
            break
    print("rounds", kv.stats().rounds)
    pass_gate(sys.argv[1], kv.stats().rounds)
"""
"""Trains until the test opens its gate, then waits at it once more."""

CONFIG = """
scrape_configs:
  - job_name: fptps
    scrape_interval: 1s
    http_sd_configs:
      - url: http://127.0.0.1:{port}/targets
        refresh_interval: 1s
"""

MAY_BE_EMPTY = re.compile("fptps_cluster_node_link_use|fptps_link_(measured|stated)")
"""On one host there is no link."""


def fetch(url):
    """The text of a page."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


class Prometheus:
    """One that runs."""

    def __init__(self, folder, config, port):
        self._api = f"http://127.0.0.1:{port}"
        command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data"]
        with open(folder / "log", "w") as log:
            self._process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stderr=log)

    def query(self, query):
        """The result of a query; [] as long as Prometheus is not ready."""
        try:
            text = fetch(f"{self._api}/api/v1/query?{urllib.parse.urlencode({'query': query})}")
        except (ConnectionError, urllib.error.URLError):
            return []
        return json.loads(text)["data"]["result"]

    def until(self, query, met=bool):
        """Asks again and again; returns the first result for which met is true."""
        while not met(found := self.query(query)):
            assert self._process.poll() is None
        return found

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait()


def queries():
    """The queries of the dashboard."""
    dashboard = json.loads((ROOT / "docs/grafana.json").read_text())
    return [target["expr"].replace("$__rate_interval", "10s") for p in dashboard["panels"] for target in p["targets"]]


def test_prometheus_and_the_dashboard(tmp_path):
    program, config = tmp_path / "train.py", tmp_path / "prometheus.yml"
    program.write_text(TRAIN)
    with reserved_port() as port, reserved_port() as own, Gate() as gate:
        config.write_text(CONFIG.format(port=port))
        subprocess.run(["promtool", "check", "config", config], check=True)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "FPTPS_METRICS_PORT": str(port),
        }
        command = [sys.executable, "-m", "fptps", "run", "-n", "2", "-s", "1", sys.executable, program, gate.address]
        run = subprocess.Popen(command, env=environment)
        assert sorted(gate.wait(2)) == [0, 1]
        with Prometheus(tmp_path, config, own) as prometheus:
            found = prometheus.until("fptps_node_info", lambda found: len(found) == 4)
            assert {each["metric"]["node"] for each in found} == {"scheduler", "server 0", "worker 0", "worker 1"}
            for each in found:
                metrics = fetch(f"http://{each['metric']['instance']}/metrics")
                checked = subprocess.run(
                    ["promtool", "check", "metrics"], input=metrics, capture_output=True, text=True, check=False
                )
                assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
            for query in queries():
                if not MAY_BE_EMPTY.search(query):
                    prometheus.until(query)
            gate.open()
            rounds = gate.wait(2)
            assert rounds[0] == rounds[1] > 100
            ended = prometheus.until(
                f"fptps_rounds_total == {rounds[0]} or fptps_cluster_rounds_total == {2 * rounds[0]}",
                lambda found: len(found) == 3,
            )
            assert {each["metric"]["__name__"] for each in ended} == {
                "fptps_rounds_total",
                "fptps_cluster_rounds_total",
            }
            gate.open()
            assert run.wait(60) == 0
