"""Timelines of a cluster: the parts that its nodes have recorded, on one clock; a file of them, and what it says.

part: what one node has recorded. clocks: the offsets of hosts' clocks. trace: all parts on one clock. chrome: the file
that Perfetto opens. packets: the ways of packets. steps: the steps of a training loop. waits: where the time of steps
went. causes: what to change. report: all of that as text. command: `fptps timeline`.
"""
