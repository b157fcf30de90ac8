"""Machines' names for things, as pages say them."""

from __future__ import annotations

# The colour of a state's tag, as a class of components.css.
TONES = {
    "published": "good",
    "credited": "good",
    "verified": "accent",
    "in_review": "warn",
    "approved": "good",
    "uploading": "warn",
    "validating": "warn",
    "in_progress": "accent",
    "finalizing": "accent",
    "cancelling": "warn",
    "completed": "good",
    "expired": "bad",
    "verifying": "warn",
    "pending": "warn",
    "paid": "good",
    "active": "good",
    "on": "good",
    "waiting": "warn",
    "healthy": "good",
    "short": "warn",
    "starting": "warn",
    "late": "bad",
    "blind": "bad",
    "down": "bad",
    "measuring": "accent",
    "running": "accent",
    "done": "good",
    "measured": "good",
    "simulated": "accent",
    "passed": "good",
    "stopped": "bad",
    "transferred": "warn",
    "paying": "warn",
    "requested": "warn",
    "asked": "warn",
    "granted": "good",
    "declined": "bad",
    "sent": "good",
    "open": "warn",
    "won": "good",
    "lost": "bad",
    "restricted": "bad",
    "closed": "bad",
    "failed": "bad",
    "returned": "bad",
    "refused": "bad",
    "revoked": "bad",
    "live": "good",
    "draining": "warn",
    "drained": "warn",
    "silent": "bad",
}

# A bank's reasons, as Stripe's codes name them.
BANK_REASONS = {
    "card_declined": "the bank declined the card",
    "expired_card": "the card has expired",
    "insufficient_funds": "there was not enough money on the card",
    "incorrect_cvc": "the security code was wrong",
    "processing_error": "the bank could not be reached",
    "authentication_required": "the bank asks the card's holder",
    "payment_intent_authentication_failure": "the card's holder did not confirm the payment",
}

# Why a cardholder's bank took a payment back, as Stripe's codes name it.
DISPUTE_REASONS = {
    "fraudulent": "it says that the card's holder did not make the payment",
    "duplicate": "it says that the payment was made twice",
    "unrecognized": "the card's holder does not recognize the payment",
    "subscription_canceled": "it says that the payment was cancelled before",
    "product_not_received": "it says that nothing was received for the payment",
    "product_unacceptable": "it says that what was received was not as described",
    "credit_not_processed": "it says that a refund was promised and did not arrive",
}

# Ends of answers, as receipts name them.
ENDS = {
    "stop": "at its own end (stop)",
    "length": "at its limit of tokens (length)",
    "tool_calls": "with a call of a function (tool_calls)",
    "cancelled": "cut off: the caller was gone (cancelled)",
}

# Labels of allauth's forms.
LABELS = {
    "Email": "E-mail",
    "Remember Me": "Remember me",
    "Password (again)": "Password, again",
    "Current Password": "Current password",
    "New Password": "New password",
    "New Password (again)": "New password, again",
}
