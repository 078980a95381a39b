from samba.reporting.plots import (
    Area as Area,
    CallMark as CallMark,
    HEIGHT as HEIGHT,
    Mark as Mark,
    Plot as Plot,
    Spot as Spot,
    WIDTH as WIDTH,
    memory_plot as memory_plot,
    roofline_plot as roofline_plot,
)
