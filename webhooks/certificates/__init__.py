"""Where the webhook's serving certificate comes from, how it is renewed, and whether the API server trusts it."""
