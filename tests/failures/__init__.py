"""What clients feel when one of two endpoints fails: a steady load on a real gateway, measured from the outside.

`python -m tests.failures` runs every scenario and prints a table. `tests/system/test_failures.py` runs them in CI.
"""
