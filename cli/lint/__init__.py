"""`npufleet lint`: the rules of the server, run over the files of a repository before they reach it."""
