"""Responses of `/v1/responses` that customers have kept: encrypted with their organization's key, for 30 days."""
