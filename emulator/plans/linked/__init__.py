"""Plans whose equal layers share executables: what is traced once whole is compiled in parts."""
