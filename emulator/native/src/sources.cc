// Says which sources the kernels were built from.
#include <cstdint>

#ifndef EMULATOR_SOURCES
#define EMULATOR_SOURCES 0  // not known
#endif

extern "C" __attribute__((visibility("default"))) uint64_t kernels_sources() {
  return EMULATOR_SOURCES;
}
