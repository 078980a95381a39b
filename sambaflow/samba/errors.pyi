from samba.errors import (
    ArgumentError as ArgumentError,
    ConversionError as ConversionError,
    DeviceAccessError as DeviceAccessError,
    MissingPackage as MissingPackage,
    NoAutograd as NoAutograd,
    NoGradient as NoGradient,
    NoHostData as NoHostData,
    NotLoaded as NotLoaded,
    NotTraced as NotTraced,
    SambaError as SambaError,
    UnknownTensor as UnknownTensor,
    UnsupportedKeyword as UnsupportedKeyword,
)
