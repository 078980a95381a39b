from samba.reporting.time_part import (
    Times as Times,
    roofline as roofline,
    time_of_sections as time_of_sections,
)
