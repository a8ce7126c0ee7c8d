"""Does for PodMonitors what the Prometheus operator does, where there is none: writes Prometheus' configuration, and beside it, again and
again, which pods it is to scrape.

monitors.py MONITORS CONFIGURATION RULES
"""

import json
import os
import re
import subprocess
import sys
import time

monitors, configuration, rules = sys.argv[1:]
with open(monitors, encoding="utf-8") as file:
    # One document after another, as kubectl writes several.
    monitors = json.loads("[" + file.read().replace("\n}\n{", "\n},{") + "]")


def write(path, what):
    """At once: Prometheus may read it at any time."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(what, file)
    os.replace(path + ".new", path)


def snake(name):
    return re.sub("[A-Z]", lambda letter: "_" + letter[0].lower(), name)


def scraped(monitor, number):
    """A job, with the labels that the Prometheus operator puts on all series of a pod before what the monitor itself asks for."""
    endpoint, meta = monitor["spec"]["podMetricsEndpoints"][0], monitor["metadata"]
    own = {"namespace": "namespace", "pod_container_name": "container", "pod_name": "pod"}
    relabelings = [{"source_labels": [f"__meta_kubernetes_{source}"], "target_label": target} for source, target in own.items()]
    relabelings.append({"target_label": "job", "replacement": f"{meta['namespace']}/{meta['name']}"})
    relabelings += [{snake(key): value for key, value in rule.items()} for rule in endpoint.get("relabelings", [])]
    return {
        "job_name": f"podMonitor/{meta['namespace']}/{meta['name']}/0",
        "honor_labels": endpoint.get("honorLabels", False),
        "file_sd_configs": [{"files": [f"{configuration}.{number}.json"], "refresh_interval": "5s"}],
        "relabel_configs": relabelings,
    }


def targets(monitor, pods):
    """What Kubernetes discovery says of the ports that the monitor chooses."""
    spec = monitor["spec"]
    for pod in pods:
        meta, labels = pod["metadata"], pod["metadata"].get("labels", {})
        near = spec.get("namespaceSelector", {}).get("any") or meta["namespace"] == monitor["metadata"]["namespace"]
        chosen = near and spec["selector"]["matchLabels"].items() <= labels.items()
        if not chosen or "podIP" not in pod["status"] or pod["status"]["phase"] in ("Failed", "Succeeded"):
            continue
        for container in pod["spec"]["containers"]:
            for port in container.get("ports", []):
                if port.get("name") == spec["podMetricsEndpoints"][0]["port"]:
                    said = {"namespace": meta["namespace"], "pod_name": meta["name"], "pod_container_name": container["name"]}
                    said |= {"pod_label_" + re.sub(r"\W", "_", label): value for label, value in labels.items()}
                    address = f"{pod['status']['podIP']}:{port['containerPort']}"
                    yield {"targets": [address], "labels": {f"__meta_kubernetes_{key}": value for key, value in said.items()}}


jobs = [scraped(monitor, number) for number, monitor in enumerate(monitors)]
intervals = {"scrape_interval": "5s", "scrape_timeout": "4s", "evaluation_interval": "5s"}
write(configuration, {"global": intervals, "rule_files": [rules], "scrape_configs": jobs})
while True:
    answer = subprocess.run(["kubectl", "get", "pods", "-A", "-o", "json"], capture_output=True, check=False)
    # An API server that does not answer takes no pod away.
    if answer.returncode == 0:
        pods = json.loads(answer.stdout)["items"]
        for number, monitor in enumerate(monitors):
            write(f"{configuration}.{number}.json", list(targets(monitor, pods)))
    time.sleep(3)
