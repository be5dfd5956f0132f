"""The dashboards as code: what `scripts/dashboards.py` writes."""
