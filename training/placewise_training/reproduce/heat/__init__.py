"""Heat islands: how divisible tasks are split over nodes that warm up."""
