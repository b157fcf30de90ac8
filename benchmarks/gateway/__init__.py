"""Metered predictions per second through whole gateways, on a replica that only signs. Starts its own platform."""
