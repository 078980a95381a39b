from samba.remembering.surroundings import (
    unchanged_surroundings as unchanged_surroundings,
)
