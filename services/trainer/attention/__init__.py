"""Attention within packed rows."""
