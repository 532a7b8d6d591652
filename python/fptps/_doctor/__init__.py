"""`fptps doctor`: what is wrong with hosts and the network between them, before a run or beside one.

facts: what a host says of itself; wire: messages between hosts, and what they may hold; listener: what a host answers
others; measure: one pair of hosts; gather: all of it, by the first host; checks: facts in, findings out (pure); show:
the report as text.
"""
