"""A bounded random soak: a real gateway between endpoints that fail, clients that leave or attack, and reloads.

`python -m tests.soak --seed N --seconds S` prints what happened by kind and exits with 1 if a rule was broken:
a reply was not its client's own, a request was executed twice, something was still held when all had gone.
"""
