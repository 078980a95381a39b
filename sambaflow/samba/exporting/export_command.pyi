from samba.exporting.export_command import (
    NeedsGraph as NeedsGraph,
    UnknownSection as UnknownSection,
    run as run,
)
