"""The control API (/api/v1): everything the dashboard does, through DRF."""
