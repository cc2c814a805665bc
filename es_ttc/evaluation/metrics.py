"""Ranking metrics, by ir-measures."""
