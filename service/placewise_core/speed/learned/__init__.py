"""What a site has shown of its jobs, by sums of their reports: estimators, pure."""
