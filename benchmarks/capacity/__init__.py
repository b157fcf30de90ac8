"""Plans beside runs of the engine: how far off the predictions are, and how far other predictors."""
