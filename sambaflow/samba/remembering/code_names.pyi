from samba.remembering.code_names import (
    Walks as Walks,
    has_an_order as has_an_order,
    imports_in as imports_in,
    makes_sets as makes_sets,
    names_in as names_in,
    sets_keep_order as sets_keep_order,
    walks_of as walks_of,
)
