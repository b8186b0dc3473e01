"""Reviews of one replica of the webhook: time and number, beside what the API server needs without it."""
