"""Evaluation on BEIR collections: datasets, metrics, bootstrap, methods, reports."""
