"""The decision log: records, the queue that takes them off the hot path, and the export to Parquet."""
