"""`make bench`: measure Sessile against the limit of the machine, in the same run, and against peers.

    python -m tests.bench [--only S1,S4] [--size-mb 1000] [--json PATH] [--strict] [--smoke]
    python -m tests.bench.curves .cache/bench/last.json        generates the page on speed from the result

Installed peers take part; PEERS=1 installs missing ones.

The speed of a machine can drift by a factor of two, so only ratios count: each round measures the work and its baseline
one after the other, and the ratio of a subject is the median over its rounds. Each subject runs in its own process, and
its memory is measured in a separate one.
"""
