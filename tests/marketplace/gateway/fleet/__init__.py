"""Tests of the fleet link: real gateways, the replica's own code at the other end."""
