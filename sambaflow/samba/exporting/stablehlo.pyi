from samba.exporting.stablehlo import (
    Place as Place,
    Stablehlo as Stablehlo,
    graph_steps as graph_steps,
    section_steps as section_steps,
    stablehlo as stablehlo,
)
