"""What is said about the Helm chart's resources without a cluster."""
