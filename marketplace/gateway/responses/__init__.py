"""`/v1/responses`: OpenAI's Responses in front of chat completions, translated by pure functions (docs/responses.md).

A response is one chat completion: the same order, hold, ticket, guards and receipt. `request` reads the request,
`items` turns items into messages, `output` and `events` write the answer, `reply` puts them between relay and
connection, `store` keeps responses, and `kept` answers requests about those.
"""
