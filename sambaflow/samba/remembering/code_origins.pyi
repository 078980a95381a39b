from samba.remembering.code_origins import (
    file_digest as file_digest,
    has_script as has_script,
    installed as installed,
    is_users_file as is_users_file,
    own_version as own_version,
    source_files as source_files,
    sources as sources,
)
