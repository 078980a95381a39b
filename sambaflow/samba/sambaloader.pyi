from samba.sambaloader import (
    DataLoaderException as DataLoaderException,
    SambaLoader as SambaLoader,
)
