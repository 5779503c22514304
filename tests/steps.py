"""Drives the codec's long work, which is made of steps, without an event loop."""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def run(steps: Generator[None, None, T]) -> T:
    """Drive *steps* to the end without a pause and return its value."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            value: T = stop.value
            return value
