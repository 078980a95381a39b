from samba.reporting.graph_boxes import (
    graph_boxes as graph_boxes,
)
