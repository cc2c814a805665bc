"""Paired bootstrap."""
