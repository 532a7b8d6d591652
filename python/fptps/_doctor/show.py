"""The report as text, for a terminal 100 columns wide, and as JSON."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

from .checks import Finding
from .facts import Facts
from .gather import Report

WIDTH: Final = 100


def as_json(report: Report, found: Sequence[Finding]) -> str:
    """One object: hosts by name, pairs, findings."""
    named = {report.hosts[host]: dataclasses.asdict(facts) for host, facts in report.facts.items()}
    pairs = []
    for pair in report.pairs:
        words = dataclasses.asdict(pair)
        pairs.append({**words, "first": report.hosts[pair.first], "second": report.hosts[pair.second]})
    findings = [finding._asdict() for finding in found]
    return json.dumps({"hosts": named, "pairs": pairs, "findings": findings}, indent=2)


def as_text(report: Report, found: Sequence[Finding]) -> str:
    """Tables of hosts and pairs, then the findings."""
    parts = [_table(("host", "announces", "interface", "MTU", "cores", "threads", "TCP", "fptps"), _hosts(report))]
    if report.pairs:
        header = ("pair", "delay", "clock", "there", "back", "both at once")
        parts.append(_table(header, _pairs(report)))
    if found:
        parts.append("\n\n".join(_finding(number, finding) for number, finding in enumerate(found, 1)))
        parts.append(count(len(found)))
    else:
        parts.append("nothing is wrong, as far as this can see")
    return "\n\n".join(parts) + "\n"


def count(findings: int) -> str:
    """ "1 finding", "2 findings"."""
    return f"{findings} finding{'' if findings == 1 else 's'}"


def _hosts(report: Report) -> Iterable[tuple[str, ...]]:
    for host, facts in sorted(report.facts.items()):
        yield (report.hosts[host], *_of_host(facts))
    for host in report.silent:
        if host not in report.facts:
            yield (report.hosts[host], "no answer", "", "", "", "", "", "")


def _of_host(facts: Facts) -> tuple[str, ...]:
    own = next((each for each in facts.interfaces if each.address == facts.announced), None)
    interface = f"{own.name}{f' {own.speed} Mbit/s' if own.speed else ''}" if own else "-"
    cores = f"{facts.usable:g} of {facts.cores}"
    version = facts.versions.get("fptps", "?")
    mtu = str(own.mtu) if own else "-"
    return facts.announced or "-", interface, mtu, cores, str(facts.threads), facts.congestion, version


def _pairs(report: Report) -> Iterable[tuple[str, ...]]:
    for pair in report.pairs:
        name = f"{report.hosts[pair.first]} - {report.hosts[pair.second]}"
        if pair.dial.error:
            yield name, pair.dial.error, "", "", "", ""
            continue
        both = "-" if pair.lost else f"{_rate(pair.there_both)} + {_rate(pair.back_both)}"
        delay, clock = f"{pair.delay * 1e3:.2f} ms", f"{pair.offset:+.3f} s"
        yield name, delay, clock, _rate(pair.there), _rate(pair.back), both


def _rate(rate: float) -> str:
    return "-" if not rate else f"{rate / 1000:.1f} Gbit/s" if rate >= 1000 else f"{rate:.0f} Mbit/s"


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    all_ = [header, *rows]
    widths = [max(len(row[column]) for row in all_) for column in range(len(header))]
    return "\n".join("  ".join(word.ljust(width) for word, width in zip(row, widths)).rstrip() for row in all_)


def _finding(number: int, finding: Finding) -> str:
    lines = [f"{number}. {finding.where}: {finding.what}"]
    lines += [f"   why   {finding.why}", f"   mend  {finding.mend}"]
    return "\n".join(
        textwrap.fill(
            line,
            WIDTH,
            subsequent_indent=" " * (3 if line is lines[0] else 9),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in lines
    )
