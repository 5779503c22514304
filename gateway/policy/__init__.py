"""Decisions, as pure functions of what is known: no I/O, no clock, no codec."""
