"""Device nodes for containers, as container runtimes take them (Container Device Interface)."""
