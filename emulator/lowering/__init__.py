"""Steps of a section as pure functions of arrays, forward, backward and update."""
