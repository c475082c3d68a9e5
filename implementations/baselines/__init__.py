"""Baselines that every method is held against."""
