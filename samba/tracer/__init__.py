"""From a torch model to a functional graph: capture, promotion, names, source lines."""
