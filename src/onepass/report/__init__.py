"""Stored results as tables, curves and a page. Reads results only; never trains."""
