"""How many samples per second a shape and batch give: fitted to measured steps."""
