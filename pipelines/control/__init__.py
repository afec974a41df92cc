"""Starting, finding and stopping the runners of a pipeline, from outside of them."""
