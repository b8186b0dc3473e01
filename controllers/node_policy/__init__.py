"""The node-policy controller: NPUNodePolicy objects and Nodes in, orders in NPUNodeState and status out."""
