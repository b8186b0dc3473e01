"""The admission server: a stateless app that judges reviews by the rules and by what it knows of the cluster."""
