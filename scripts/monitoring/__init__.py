"""A real Prometheus beside a local stack, and pictures of what the dashboards' queries give."""
