"""Tests of the codec: pairs of files, properties, and one table per module."""
