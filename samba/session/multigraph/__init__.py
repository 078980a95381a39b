"""Several graphs in one PEF: traces of modules, graphs cut out of them, and loading them."""
