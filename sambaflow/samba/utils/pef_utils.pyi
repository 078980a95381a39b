from samba.utils.pef_utils import (
    MissingPefInfo as MissingPefInfo,
    PefInfoStruct as PefInfoStruct,
    get_pef_info as get_pef_info,
    get_pefmeta as get_pefmeta,
    get_pefmeta_dict as get_pefmeta_dict,
)
