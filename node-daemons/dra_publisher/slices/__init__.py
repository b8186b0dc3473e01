"""The slices of this node: what is offered in the words of the API, what has to be written, and the writing of it."""
