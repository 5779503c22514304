"""Decisions as pure functions of their arguments: no I/O, no clock, no codec."""
