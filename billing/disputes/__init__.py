"""Disputes: payments that a customer's bank took back, from the first question to its decision, and the evidence."""
