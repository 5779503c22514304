"""The benchmark: what the gateway costs, as ratios to yardsticks that are measured beside it in the same run.

`python -m tests.bench` runs it; `small.py`, `sizes.py`, `trips.py` and `rows.py` say how every figure is made,
`docs/performance.md` what they mean and how they are measured again. Linux only: it reads processor times and peak
memory of other processes.

MLSERVER           the command of an MLServer; without it the rows that need one are skipped
KSERVE_PYTHON      an interpreter that has kserve, for the rows over sizes
GATEWAY_CHECKOUT   the folder of another checkout whose gateway is measured instead of this one's

Figures of one machine mean nothing on another, and little on the same one an hour later. So everything is divided
by what the same machine does at the same moment, in rounds that alternate:

P   processor time of `relay.py`: aiohttp reads a body, sends a body, reads an answer, replies, and looks at nothing
K   processor time of `kernel.py`: orjson on the request's array, simdjson on the answer's, in a loop

P is what a proxy in Python costs at all, K what the conversion costs at all; the gateway is held against their sum.
"""
