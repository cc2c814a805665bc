"""Benchmarks: each module prints one Markdown table with its machine, versions, data and command."""
