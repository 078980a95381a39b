"""From a traced graph to a Program: gradient flow, sections, saved values, regions, schedule."""
