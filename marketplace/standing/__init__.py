"""The order of the catalogue: who counts as a payer, the formula, and the task that gives each model its place."""
