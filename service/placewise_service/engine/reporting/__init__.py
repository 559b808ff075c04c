"""What hosts report: mutations of the store, and outcomes of decisions."""
