"""Everything that learns or judges: simulator, environment, data, models, trainers, experiments. Never serves."""
