"""Scenarios, experiments and runners."""
