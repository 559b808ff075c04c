"""Reports as measurements of a site."""
