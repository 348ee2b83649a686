"""Streams, runs and what they measure."""
