"""Makers of the small models and data files that Sluice's demo and tests use."""
