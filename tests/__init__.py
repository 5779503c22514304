"""Tests of tensor-gateway."""
