"""The request bodies of `/v1`, read in one place: the gateway and a replica take and refuse the same ones.

`parsing.parse` gives a typed body, or the one refusal that both sides send. What needs a model to be judged (its
vocabulary, its context, its contract, a grammar) is left to them.
"""
