from samba.reporting.plots import (
    Spot as Spot,
    memory_plot as memory_plot,
    roofline_plot as roofline_plot,
)
