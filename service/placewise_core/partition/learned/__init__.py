"""Constants of a site that Partition reads, as its cluster has learned them."""
