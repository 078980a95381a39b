from samba.utils.argparser import (
    SambaConfig as SambaConfig,
    last_parsed_args as last_parsed_args,
    parse_app_args as parse_app_args,
    parse_yaml_to_args as parse_yaml_to_args,
)
