from samba.utils.measure import (
    SectionTime as SectionTime,
    format_sections as format_sections,
    measure_performance as measure_performance,
    measure_sections as measure_sections,
)
