"""`make bench`: what Sessile costs, against the limit measured in the same run, and against peers.

    python -m tests.bench [--only S1,S4] [--size-mb 1000] [--json PATH] [--strict] [--smoke]
    python -m tests.bench.curves .cache/bench/last.json        makes the page on speed from the result

Peers that are installed take part; PEERS=1 installs those that are missing.

Machines drift by a factor of two, so only ratios count: every round measures the work and its baseline one after the other,
and the ratio of a subject is the median of the ratios of its rounds. Each subject runs in a process of its own, and its
memory is measured in yet another one that does nothing else.
"""
