"""Sums of usage and earnings, so that no page adds up predictions. Imports the tables of `billing` alone."""
