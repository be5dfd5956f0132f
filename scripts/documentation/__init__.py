"""What `scripts/docs.py` writes, page by page."""
