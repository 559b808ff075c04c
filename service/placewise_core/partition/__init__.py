"""How a divisible task is split over computing units: thresholds, capabilities, shares, temperatures."""
