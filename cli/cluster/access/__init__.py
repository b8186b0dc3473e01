"""Who may talk to the API server and how: keys, certificates, kubeconfigs, and a client for the first calls."""
