"""The import path of the vendor's inference service, which no emulator has."""
