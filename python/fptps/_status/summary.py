"""What `fptps run` says at its end, from the last status of the cluster."""

from __future__ import annotations

from typing import Any


def summary(status: dict[str, Any]) -> str:
    """One line about a whole run: steps (or rounds), MB/s, waits, links, plan; "" if nothing was summed. status is that
    of docs/seeing.md."""
    workers = [node for node in status["nodes"] if node["role"] == "worker" and node["seconds"]]
    count = max((node["steps"] or node["rounds"] for node in workers), default=0)
    if not count:
        return ""
    seconds = max(node["seconds"] for node in workers)
    what = "step" if any(node["steps"] for node in workers) else "round"
    rate = sum(node["bytes_pushed"] / node["seconds"] for node in workers) / len(workers) / 1e6
    waits = sum(min(1.0, node["wait_s"] / node["seconds"]) for node in workers) / len(workers)
    parts = [
        f"{count:,} {what}{'' if count == 1 else 's'} in {seconds:,.1f} s ({count / seconds:,.1f}/s)",
        f"{rate:,.{0 if rate >= 10 else 1}f} MB/s of each worker",
        f"workers waited {waits:.0%} of the time",
    ]
    link = _busiest_link(status["nodes"])
    if link:
        parts.append(link)
    parts.append(f"plan {status['plan']}")
    return ", ".join(parts)


def _busiest_link(nodes: list[dict[str, Any]]) -> str:
    """The link that was used most, "" if none is known."""
    uses = [
        (node[f"link_bytes_{counted}"] * 8 / node["seconds"] / node[f"link_{way}_bits_per_s"], node["name"], way)
        for node in nodes
        for way, counted in (("up", "sent"), ("down", "received"))
        if node["seconds"] and node[f"link_{way}_bits_per_s"]
    ]
    if not uses:
        return ""
    use, name, way = max(uses, key=lambda link: link[0])
    return f"busiest link {use:.0%} ({name}, {way})"
