"""The protocol of lanes: bodies of their chains, writers with epochs, and the decisions from a state to the next action. Pure."""
