"""The API of Kubernetes: its client, watches, objects and their names."""
